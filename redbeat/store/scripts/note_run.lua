-- note_run(run): note a run that is being sent, or was dropped, among those of its entry. run has
-- running, task_id, due, members and text: those of its record and the record itself; overlap; and is_released: it has
-- waited for another run to end.
-- Returns nil where it has no deadline of its own, then what became of it, as members of its record in the history, if it
-- was published before this and has ended already.
-- with_members(record, members): add members to the object about the run that was sent; record is several lines.
-- Not scripts of their own, but put in front of those that need them, after run_records.
-- a worker may have begun it, or even ended it, before it was recorded as sent
local function merge_run(run, record)
  if record.state == 'ended' then
    forget_run(run.running, run.task_id)
    return nil, members_of(record)
  end
  local is_begun = record.state ~= 'sent'
  for name, value in pairs(cjson.decode('{' .. run.members .. '}')) do record[name] = value end
  record.sent, record.waited, record.holds = now, run.is_released and 1 or nil, nil
  store_run(run.running, run.task_id, record)
  return not is_begun and run.task_id .. '\0' .. run.running or nil
end

local function note_run(run)
  local running, task_id, overlap = run.running, run.task_id, run.overlap
  if run.is_released or overlap == 'dropped' then
    local waiting = decode_waiting(redis.call('HGET', running, ''))
    if waiting and is_same_time(waiting.due, run.due) then forget_run(running, '') end
  end
  local is_known = overlap == 'dropped' or overlap == 'published' or overlap == 'reserved'
  local record = is_known and read_run(running, task_id, run.due)
  if overlap == 'dropped' then
    -- a run that was reserved and never published holds back no other
    if record and record.state == 'sent' and not record.sent then forget_run(running, task_id) end
    return nil
  end
  if record then return merge_run(run, record) end
  if overlap == 'reserved' then return nil end  -- another run has taken its place: the gate decides
  local text = run.is_released and '{"waited":1,' .. string.sub(run.text, 2) or run.text
  if run.is_released or not run.is_noted then redis.call('HSET', running, task_id, text) end
  return task_id .. '\0' .. running
end

local function with_members(record, members)
  local text = string.gsub(record .. '\n', '[^\n]+\n', function(line)
    if string.find(line, '"outcome":', 1, true) then return nil end
    return string.sub(line, 1, -2) .. ',' .. members .. '\n'
  end)
  return text
end
