-- find_hold(running, run): what holds back a run with an overlap policy, as members of its record; nil
-- for nothing. run has task_id, due and overlap. By that it waits then, unless another one does already, and those in
-- progress are to be terminated: a worker that can't do that says so, once. An unknown overlap is an error. A void
-- reservation of another run goes when nothing holds this one back, and this run's own when something does: should its
-- message have left, the gate finds no record, and refuses it as long as another run holds the entry.
-- reserve_run(running, run): note a run that is about to be published, or was, unless it is held back; run
-- has members, seconds and holds_seconds besides. Returns what reserve_runs does.
-- text_of_error(problem): what a command has raised, as a text.
-- refusal_of(running, problem): the sentence that says why a run isn't sent whose entry's runs can't be read or noted. An
-- error that isn't about them is raised again.
-- Not scripts of their own, but put in front of those that need them, after run_records.
local function text_of_error(problem) return type(problem) == 'table' and problem.err or tostring(problem) end

-- what a run does while another one is in progress, for each value of overlap but 'allow'
local RULES = {
  skip = {},
  buffer_one = {waits = true},
  replace = {waits = true, terminates = true},
}

local function refusal_of(running, problem)
  local text = text_of_error(problem)
  local unknown = string.match(text, 'unknown overlap .*')
  if unknown then return unknown end
  if string.find(text, 'WRONGTYPE', 1, true) then return running .. ' holds something that is no hash of runs' end
  error(problem)
end

-- a task that can't be terminated is waited for, as is one that no worker has begun: its message may be on its way to
-- one that begins it without asking, as Redis doesn't answer it in time. A run that has waited itself is left alone until
-- it has begun: else none ever would, if messages are on their way for longer than from one due time to the next
local function terminate_others(running, run)
  local found = redis.call('HGETALL', running)
  for i = 1, #found, 2 do
    local other, record = found[i], found[i] ~= '' and decode_record(found[i + 1])
    local is_same = other == run.task_id and record and is_same_time(record.due, run.due)
    local is_spared = record and (record.overdue or record.terminate or record.waited and record.state == 'sent')
    if record and record.state ~= 'ended' and not (is_same or is_spared) then
      record.terminate = 'replaced'
      redis.call('HSET', running, other, cjson.encode(record))
    end
  end
end

local function find_hold(running, run)
  local rule = RULES[run.overlap] or error('unknown overlap ' .. run.overlap .. ': update RedBeat, or set another overlap')
  local holder, record, record_id, void = find_holder(running, run.task_id, run.due, '', true)
  local waiting
  if rule.waits then
    local found = decode_waiting(redis.call('HGET', running, ''))
    waiting = found and not is_same_time(found.due, run.due) and found['for'] or nil
  end
  if not holder and not waiting then
    for _, task_id in ipairs(void) do forget_run(running, task_id) end
    return nil
  end
  local own = read_run(running, run.task_id, run.due)
  if own and is_void(own) then forget_run(running, run.task_id) end
  local outcome = 'skipped'
  if rule.waits and not waiting then
    outcome = 'waiting'
    redis.call('HSET', running, '', cjson.encode({['due'] = run.due, ['for'] = run.task_id}))
  end
  if holder then  -- somebody may have deleted all deadlines, and without one it would hold its entry for ever
    local seconds = record.state == 'started' and 60 or tonumber(record.queue) or 86400
    redis.pcall('ZADD', deadlines, 'NX', later(now, seconds), record_id .. '\0' .. running)
  end
  if not holder then
    redis.pcall('ZADD', deadlines, now, '\0' .. running)  -- for beat may have forgotten the one that waits
  elseif rule.terminates then
    terminate_others(running, run)
  end
  local about, since = {outcome = outcome, held_by = holder or waiting, behind = waiting}, nil
  if holder then
    record = record.root and read_run(running, record.root) or record  -- the run itself
    local state = record.state == 'sent' and (record.holds or not record.sent) and 'reserved' or record.state
    if state == 'retrying' or state == 'spawned' or state == 'reserved' then about.held_state = state end
    about.worker, since = record.worker, record.started or record.sent
    if state == 'retrying' then about.held_attempt, since = tonumber(record.attempt) or 1, record.eta end
  end
  local members = string.sub(cjson.encode(about), 2, -2)
  return since and members .. string.format(',"since":%.6f', since) or members
end

-- a worker may have begun it, or even ended it, before that
local function record_published(running, run, record)
  if not record then return 'gone' end
  if record.state == 'ended' then
    forget_run(running, run.task_id)
    return 'known'
  end
  record.sent, record.holds = record.sent or now, nil
  local is_begun = record.state ~= 'sent'
  store_run(running, run.task_id, record, not is_begun and run.seconds)
  return is_begun and 'known' or 'reserved'
end

local function reserve_run(running, run)
  local known = read_run(running, run.task_id, run.due)
  if run.overlap == 'published' then return record_published(running, run, known) end
  if known and (known.state ~= 'sent' or (known.sent and not known.holds)) then return 'known' end
  local text = '{"state":"sent","sent":"' .. now .. '",' .. run.members .. '}'
  if run.overlap ~= 'allow' then
    local held = find_hold(running, run)
    if held then return 'held ' .. held end
    local holds = tonumber(run.holds_seconds) > 0 and '"holds":"' .. later(now, run.holds_seconds) .. '",' or ''
    text = '{"state":"sent",' .. holds .. run.members .. '}'
  end
  redis.call('HSET', running, run.task_id, text)
  redis.call('ZADD', deadlines, later(now, run.seconds), run.task_id .. '\0' .. running)
  return 'reserved'
end
