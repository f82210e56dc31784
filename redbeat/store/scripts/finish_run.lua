-- finish_run(run): note that a run is over, and forget it; where the tasks of its workflow aren't, note that.
-- poke(running): let beat look at an entry: its waiting run may go, or it has failed too often.
-- add_event(name, event, run): tell those who listen.
-- Not scripts of their own, but put in front of those that need them, after count_figures and run_records. These scripts
-- have deadlines, events, failures, streaks, figures, expected and wake. run has the keys running, history and failing,
-- and name, task_id, due, outcome, and if they are known error, record, ran, worker, attempt, delivery.
-- finish_run returns 'ended', 'late' for a run that was given up or has ended before, 'spawned' if other tasks of its
-- workflow are left, or 'kept' if beat hasn't recorded yet that it was sent: then the record stays for a minute, with
-- what became of it.
local kept_seconds, most_events, most_looked_at, default_queue_seconds = 60, 10000, 500, 86400
local most_of_error = 200  -- bytes
local is_failure = {failed = true, lost = true}
local is_given_up = {lost = true, never_started = true}
local is_listed = {failed = true, lost = true, never_started = true}

-- a key of another type costs what it is about, and not the run's end: hence redis.pcall
local function add_event(name, event, run)
  redis.pcall('XADD', events, 'MAXLEN', '~', most_events, '*', 'event', event, 'entry', name, 'run', cjson.encode(run))
end

local function poke(running)
  redis.call('ZADD', deadlines, now, '\0' .. running)
  redis.pcall('PUBLISH', wake, running)
end

-- Returns 'ended', 'late', 'repeated' if this delivery's end was noted before, or nil if its history hasn't got the
-- run, and whether it has any
local function add_to_history(run)
  local history, first, found = run.history, 0, nil
  repeat
    found = redis.pcall('LRANGE', history, first, first + 19)
    if found.err then return nil end
    for place, text in ipairs(found) do
      local due = string.match(text, '"due":([%d.e+]+)')
      if due and is_same_time(due, run.due) then
        local is_read, past = pcall(cjson.decode, text)
        if is_read and type(past) == 'table' and (past.id == nil or past.id == run.task_id) then
          local at = first + place - 1
          if not past.outcome then
            redis.pcall('LSET', history, at, string.sub(text, 1, -2) .. ',' .. members_of(run) .. '}')
            return 'ended'
          elseif past.ended and past.delivery and past.delivery == run.delivery and not is_given_up[past.outcome] then
            return 'repeated'
          elseif past.ended then
            if not past.late and run.outcome ~= 'superseded' and run.outcome ~= 'expired' then
              redis.pcall('LSET', history, at, string.sub(text, 1, -2) .. ',"late":' .. cjson.encode(run.outcome) .. '}')
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
local function is_told(run)
  local since = math.floor(1000 * (tonumber(now) - kept_seconds))
  for _, row in ipairs(redis.pcall('XREVRANGE', failures, '+', since, 'COUNT', most_looked_at)) do
    local _, entry, _, task_id, _, due = unpack(row[2])  -- as tell_of adds them
    if task_id == run.task_id and entry == run.name and is_same_time(due, run.due) then return true end
  end
  return false
end

-- by when the next run is to have succeeded; nothing is expected after the last one
local function expect_next(run, record)
  local next = record and record.next
  if tonumber(next) and tonumber(next) >= 0 then
    redis.pcall('ZADD', expected, 'GT', expected_at(next, run.due, next, record.max), run.running)
  elseif next then
    redis.pcall('ZREM', expected, run.running)
  end
end

local function count_end(run, record)
  local labels = record and type(record.labels) == 'string' and record.labels or ''
  local words, ran, wait = run.outcome, run.ran and seconds_of(run.ran), run.wait and seconds_of(run.wait)
  if ran then words = words .. '+ran/' .. bucket_of(length_bounds, ran) end
  if wait then words = words .. '+wait/' .. bucket_of(length_bounds, wait) end
  add_figure(figures, labels, words, 1)
  if ran and ran > 0 then add_figure(figures, labels, 'ran/sum', micros_of(ran)) end
  if wait and wait > 0 then add_figure(figures, labels, 'wait/sum', micros_of(wait)) end
end

-- tell of the end once: the failures in a row, the list of failures, what is expected next, the figures, the event
local function tell_of(run, record, has_history)
  if is_failure[run.outcome] then
    local in_a_row = redis.pcall('INCR', run.failing)
    local most = has_history and (tonumber(record and record.pause) or math.huge) or 1  -- the entry may be gone
    if type(in_a_row) == 'number' and in_a_row >= most then poke(run.running) end
    if type(in_a_row) == 'number' then redis.pcall('ZADD', streaks, in_a_row, run.running) end
  elseif run.outcome == 'succeeded' then
    if redis.pcall('DEL', run.failing) == 1 then redis.pcall('ZREM', streaks, run.running) end
    expect_next(run, record)
  end
  count_end(run, record)
  if is_listed[run.outcome] then
    redis.pcall(
      'XADD', failures, 'MAXLEN', '~', most_events, '*', 'entry', run.name, 'id', run.task_id, 'due', run.due,
      'outcome', run.outcome, 'error', run.error or '', 'worker', run.worker or ''
    )
  end
  add_event(run.name, 'run_ended', {
    task_id = run.task_id, due = run.due, outcome = run.outcome, error = run.error, wait = run.wait, ran = run.ran,
    worker = run.worker, attempt = run.attempt, at = now,
  })
end

-- what has broken a workflow: which task of it, and what became of that
local function describe_break(run, task)
  local text = (task or 'the task ' .. run.task_id) .. ': ' .. (run.error or run.outcome)
  local size = #text <= most_of_error and #text or most_of_error
  while size < #text and string.find(string.sub(text, size + 1, size + 1), '[\128-\191]') do size = size - 1 end
  return string.sub(text, 1, size)  -- ends with a whole character
end

local function finish_run(run)
  local running, record = run.running, run.record
  for _, name in ipairs({'worker', 'attempt', 'delivery', 'ran'}) do run[name] = run[name] or (record and record[name]) end
  run.wait, run.over = record and record.wait, record and record.over

  if record and record.workflow and not record.root and has_children(running, run.task_id) then
    record.state, record.outcome, record.error, record.ran = 'spawned', run.outcome, run.error, run.ran
    store_run(running, run.task_id, record, record.queue or default_queue_seconds)
    return 'spawned'
  end
  if record and record.root then  -- a task of a workflow: it counts as a part of the run
    forget_run(running, run.task_id)
    local root = read_run(running, record.root)
    if not root then return 'ended' end
    if run.outcome ~= 'succeeded' and run.outcome ~= 'ignored' and not root.broken then
      root.broken, root.breaking = run.outcome, describe_break(run, record.task)
      store_run(running, record.root, root)
    end
    if root.state ~= 'spawned' or has_children(running, record.root) then return 'ended' end
    return finish_run({
      running = running, history = run.history, failing = run.failing, name = run.name, task_id = record.root,
      due = root.due, outcome = root.outcome, error = root.error, record = root,
      ran = root.started and string.format('%.3f', tonumber(now) - root.started) or nil,
    })
  end
  if record and record.broken and (run.outcome == 'succeeded' or run.outcome == 'ignored') then
    run.outcome, run.error = 'failed', record.breaking
  end

  local noted, has_history = add_to_history(run)
  if noted == 'repeated' then return 'late' end
  local is_repeated = not noted and not record and is_listed[run.outcome] and is_told(run)
  if noted ~= 'late' and not (record and record.told) and not is_repeated then
    tell_of(run, record, noted or has_history)
  end
  if record and not noted and not record.sent and record.state ~= 'ended' then
    record.state, record.outcome, record.error, record.ran, record.told = 'ended', run.outcome, run.error, run.ran, 1
    store_run(running, run.task_id, record, kept_seconds)
    noted = 'kept'
  elseif record then
    forget_run(running, run.task_id)
  end
  if redis.call('HGET', running, '') then poke(running) end
  return noted or 'ended'
end
