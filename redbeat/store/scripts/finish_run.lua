-- finish_run(keys, run): note that a run is over, and forget it; where the tasks of its workflow aren't, note that.
-- poke(keys, now, wake): let beat look at an entry: its waiting run may go, or it has failed too often.
-- add_event(events, name, event, run): tell those who listen.
-- Not scripts of their own, but put in front of those that need them, after count_figures and run_records.
-- keys are running, deadlines, history, events, failures, failing, streaks, figures, expected. run has name, task_id,
-- due, outcome, now, wake, and if they are known error, record, ran, worker, attempt, delivery.
-- finish_run returns 'ended', 'late' for a run that was given up or has ended before, 'spawned' if other tasks of its
-- workflow are left, or 'kept' if beat hasn't recorded yet that it was sent: then the record stays for a minute, with
-- what became of it.
local kept_seconds, most_events, most_looked_at, default_queue_seconds = 60, 10000, 500, 86400
local most_of_error = 200  -- bytes
local is_failure = {failed = true, lost = true}
local is_given_up = {lost = true, never_started = true}
local is_listed = {failed = true, lost = true, never_started = true}

-- a right that is missing, or a key of another type, costs what it is about, and not the run's end
local unrecorded = ''
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then unrecorded = reply.err end
  return reply
end

local function add_event(events, name, event, run)
  try('XADD', events, 'MAXLEN', '~', most_events, '*', 'event', event, 'entry', name, 'run', cjson.encode(run))
end

local function poke(keys, now, wake)
  redis.call('ZADD', keys.deadlines, now, '\0' .. keys.running)
  redis.pcall('PUBLISH', wake, keys.running)
end

-- what became of a run as members of a JSON object
local function members_of(run)
  local members = {'"outcome":' .. cjson.encode(run.outcome), '"ended":' .. run.now}
  for _, name in ipairs({'wait', 'ran', 'attempt'}) do
    if tonumber(run[name]) then members[#members + 1] = '"' .. name .. '":' .. run[name] end
  end
  for _, name in ipairs({'worker', 'delivery', 'error', 'over'}) do
    if run[name] and run[name] ~= '' then members[#members + 1] = '"' .. name .. '":' .. cjson.encode(run[name]) end
  end
  return table.concat(members, ',')
end

-- Returns 'ended', 'late', 'repeated' if this delivery's end was noted before, or nil if its history hasn't got the
-- run, and whether it has any
local function add_to_history(history, run)
  local first, found = 0, nil
  repeat
    found = try('LRANGE', history, first, first + 19)
    if found.err then return nil end
    for place, text in ipairs(found) do
      local due = string.match(text, '"due":([%d.e+]+)')
      if due and is_same_time(due, run.due) then
        local is_read, past = pcall(cjson.decode, text)
        if is_read and type(past) == 'table' and (past.id == nil or past.id == run.task_id) then
          local at = first + place - 1
          if not past.outcome then
            try('LSET', history, at, string.sub(text, 1, -2) .. ',' .. members_of(run) .. '}')
            return 'ended'
          elseif past.ended and past.delivery and past.delivery == run.delivery and not is_given_up[past.outcome] then
            return 'repeated'
          elseif past.ended then
            if not past.late and run.outcome ~= 'superseded' and run.outcome ~= 'expired' then
              try('LSET', history, at, string.sub(text, 1, -2) .. ',"late":' .. cjson.encode(run.outcome) .. '}')
            end
            return 'late'
          end
        end
      end
    end
    first = first + 20
  until #found < 20
  return nil, first > 20 or #found > 0
end

local function has_children(running, root)
  local found = redis.call('HGETALL', running)
  for i = 1, #found, 2 do
    local record = decode_record(found[i + 1])
    if record and record.root == root then return true end
  end
  return false
end

-- whether a failure was told of in the last minute: without a history an end that is delivered twice shows nowhere else
local function is_told(failures, run)
  local since = math.floor(1000 * (tonumber(run.now) - kept_seconds))
  local found = redis.pcall('XREVRANGE', failures, '+', since, 'COUNT', most_looked_at)
  for _, row in ipairs(found) do
    local values = {}
    for i = 1, #row[2], 2 do values[row[2][i]] = row[2][i + 1] end
    if values.id == run.task_id and values.entry == run.name and is_same_time(values.due, run.due) then return true end
  end
  return false
end

-- by when the next run is to have succeeded; nothing is expected after the last one
local function expect_next(keys, run, record)
  local next = record and record.next
  if tonumber(next) and tonumber(next) >= 0 then
    local expected = expected_at(run.now, next, run.due, next, record.max)
    redis.pcall('ZADD', keys.expected, 'GT', expected, keys.running)
  elseif next then
    redis.pcall('ZREM', keys.expected, keys.running)
  end
end

local function count_end(figures, run, record)
  local labels = record and type(record.labels) == 'string' and record.labels or ''
  local words, ran, wait = run.outcome, run.ran and seconds_of(run.ran), run.wait and seconds_of(run.wait)
  if ran then words = words .. '+ran/' .. bucket_of(length_bounds, ran) end
  if wait then words = words .. '+wait/' .. bucket_of(length_bounds, wait) end
  add_figure(figures, labels, words, 1)
  if ran and ran > 0 then add_figure(figures, labels, 'ran/sum', micros_of(ran)) end
  if wait and wait > 0 then add_figure(figures, labels, 'wait/sum', micros_of(wait)) end
end

-- tell of the end once: the failures in a row, the list of failures, what is expected next, the figures, the event
local function tell_of(keys, run, record, has_history)
  if is_failure[run.outcome] then
    local in_a_row = try('INCR', keys.failing)
    local most = has_history and (tonumber(record and record.pause) or math.huge) or 1  -- the entry may be gone
    if type(in_a_row) == 'number' and in_a_row >= most then poke(keys, run.now, run.wake) end
    if type(in_a_row) == 'number' then redis.pcall('ZADD', keys.streaks, in_a_row, keys.running) end
  elseif run.outcome == 'succeeded' then
    if try('DEL', keys.failing) == 1 then redis.pcall('ZREM', keys.streaks, keys.running) end
    expect_next(keys, run, record)
  end
  count_end(keys.figures, run, record)
  if is_listed[run.outcome] then
    try(
      'XADD', keys.failures, 'MAXLEN', '~', most_events, '*', 'entry', run.name, 'id', run.task_id, 'due', run.due,
      'outcome', run.outcome, 'error', run.error or '', 'worker', run.worker or ''
    )
  end
  add_event(keys.events, run.name, 'run_ended', {
    task_id = run.task_id, due = run.due, outcome = run.outcome, error = run.error, wait = run.wait, ran = run.ran,
    worker = run.worker, attempt = run.attempt, at = run.now,
  })
end

-- what has broken a workflow: which task of it, and what became of that
local function describe_break(run, task)
  local text = (task or 'the task ' .. run.task_id) .. ': ' .. (run.error or run.outcome)
  local size = #text <= most_of_error and #text or most_of_error
  while size < #text and string.find(string.sub(text, size + 1, size + 1), '[\128-\191]') do size = size - 1 end
  return string.sub(text, 1, size)  -- ends with a whole character
end

local function finish_run(keys, run)
  local running, deadlines, record = keys.running, keys.deadlines, run.record
  local member = run.task_id .. '\0' .. running
  run.wait = record and record.wait
  run.worker = run.worker or (record and record.worker)
  run.attempt = run.attempt or (record and record.attempt)
  run.delivery = run.delivery or (record and record.delivery)
  run.ran = run.ran or (record and record.ran)
  run.over = record and record.over

  if record and record.workflow and not record.root and has_children(running, run.task_id) then
    record.state, record.outcome, record.error, record.ran = 'spawned', run.outcome, run.error, run.ran
    redis.call('HSET', running, run.task_id, cjson.encode(record))
    redis.call('ZADD', deadlines, later(run.now, record.queue or default_queue_seconds), member)
    return 'spawned'
  end
  if record and record.root then  -- a task of a workflow: it counts as a part of the run
    redis.call('HDEL', running, run.task_id)
    redis.call('ZREM', deadlines, member)
    local text = redis.call('HGET', running, record.root)
    local root = decode_record(text)
    if not root then return 'ended' end
    if run.outcome ~= 'succeeded' and run.outcome ~= 'ignored' and not root.broken then
      root.broken, root.breaking = run.outcome, describe_break(run, record.task)
      redis.call('HSET', running, record.root, cjson.encode(root))
    end
    if root.state ~= 'spawned' or has_children(running, record.root) then return 'ended' end
    local ran = root.started and string.format('%.3f', tonumber(run.now) - root.started) or nil
    return finish_run(keys, {
      name = run.name, task_id = record.root, due = root.due, outcome = root.outcome, error = root.error, record = root,
      ran = ran, now = run.now, wake = run.wake,
    })
  end
  if record and record.broken and (run.outcome == 'succeeded' or run.outcome == 'ignored') then
    run.outcome, run.error = 'failed', record.breaking
  end

  local noted, has_history = add_to_history(keys.history, run)
  if noted == 'repeated' then return 'late' end
  local is_repeated = not noted and not record and is_listed[run.outcome] and is_told(keys.failures, run)
  if noted ~= 'late' and not (record and record.told) and not is_repeated then
    tell_of(keys, run, record, noted or has_history)
  end
  if record and not noted and not record.sent and record.state ~= 'ended' then
    record.state, record.outcome, record.error, record.ran, record.told = 'ended', run.outcome, run.error, run.ran, 1
    redis.call('HSET', running, run.task_id, cjson.encode(record))
    redis.call('ZADD', deadlines, later(run.now, kept_seconds), member)
    noted = 'kept'
  elseif record then
    redis.call('HDEL', running, run.task_id)
    redis.call('ZREM', deadlines, member)
  end
  if redis.call('HGET', running, '') then poke(keys, run.now, run.wake) end
  return noted or 'ended'
end
