-- begin_run: the gate in front of a run's task: take the lease, or tell why it isn't begun.
--
-- Uses check_layout, clock, run_records
-- KEYS running     hash of the entry's runs in progress
-- KEYS deadlines   zset of when beat must look at each
-- KEYS history     list of what became of the entry's runs, the newest first
-- KEYS events      stream of what has happened
-- ARGV name        the entry's
-- ARGV task_id     the run's
-- ARGV due         its due time, UNIX seconds
-- ARGV delivery    which delivery of its message this is
-- ARGV worker      the worker's name
-- ARGV attempt     1, and one more for each retry
-- ARGV root        the task id of the run whose workflow this task belongs to, '' if it is the run itself
-- ARGV is_soft     the worker's pool can't terminate a task
-- ARGV overlap     what its message says about runs that overlap, '' for nothing: they may
-- ARGV lease_ms    how long the lease lives unless it is renewed
-- ARGV is_expired  its message has expired, and comes once more: it is begun if it was before
-- ARGV follows     the delivery whose task has sent this message, as its retry or its replacement; '' for none
--
-- Returns {answer, rest_ms}
--   answer   'go'; 'superseded': it was given up, or is to be replaced, and another run holds the entry, or is to; 'busy':
--            another delivery of it is at work; 'over': this delivery has ended, and this call was late, or a later attempt
--            has; 'expired': its message has, and no worker had begun it in time
--   rest_ms  with 'busy' how long the other's lease lives, else 0
local member = task_id .. '\0' .. running
local record = read_run(running, task_id, due)  -- another one is of an entry with a task id of its own

local has_ended = record and (record.state == 'ended' or record.state == 'spawned') and record.delivery == delivery
if record and (has_ended or is_over(record, delivery)) then return {'over', 0} end
local rest_ms = math.ceil(1000 * ((tonumber(redis.call('ZSCORE', deadlines, member)) or 0) - tonumber(now)))
-- a task that has sent its own retry, or replacement, may still clean up
local is_successor = record and (record.followed or (follows ~= '' and record.delivery == follows))
local is_others = record and record.state == 'started' and record.delivery and record.delivery ~= delivery
if is_others and not is_successor and rest_ms > 0 and (overlap ~= '' or is_expired) then return {'busy', rest_ms} end
if record and record.terminate == 'replaced' and record.state ~= 'started' then return {'superseded', 0} end
local is_begun = record and (record.state == 'started' or (record.state == 'retrying' and rest_ms > 0))
if not record then
  local is_found = false
  for _, text in ipairs(redis.call('LRANGE', history, 0, 19)) do
    local is_read, past = pcall(cjson.decode, text)
    past = is_read and type(past) == 'table' and past or {}
    if past.delivery == delivery then return {'over', 0} end
    local is_this = is_same_time(past.due, due) and (not past.id or past.id == task_id)
    if is_this and not is_found then
      local is_older = (tonumber(past.attempt) or 0) > attempt and (follows == '' or follows ~= past.delivery)
      if past.ended and is_older then return {'over', 0} end  -- what replace() sends counts from 1 again
      if is_over(past, delivery) then return {'over', 0} end
      is_found, is_begun = true, past.outcome == 'lost' and past.worker and not past.late
    end
    if is_this and overlap == 'replace' and past.outcome == 'superseded' then return {'superseded', 0} end
  end
end
if is_expired and not is_begun then return {'expired', 0} end
-- it has ended, or was given up, or another run may have taken the place of its reservation
local holds_nothing = not record or record.holds or record.state == 'ended'
if overlap ~= '' and (holds_nothing or (record.overdue and record.state ~= 'started')) then
  if find_holder(running, task_id, due, root) then return {'superseded', 0} end
end
record = record or {due = due, root = root ~= '' and root or nil, overlap = overlap ~= '' and overlap or nil}
-- each attempt has max_runtime for itself
if record.state ~= 'started' or is_successor then
  record.overdue = nil
  if record.terminate == 'overdue' then record.terminate = nil end
end

record.state, record.started, record.delivery, record.worker, record.attempt = 'started', now, delivery, worker, attempt
record.outcome, record.error, record.told, record.after, record.followed, record.eta, record.holds = nil, nil, nil, nil, nil, nil, nil
record.soft = is_soft and 1 or nil
record.wait = record.wait or string.format('%.3f', math.max(tonumber(now) - tonumber(record.sent or due), 0))
local look_at = tonumber(now) + lease_ms / 1000
if tonumber(record.max) and not record.overdue then look_at = math.min(look_at, tonumber(now) + tonumber(record.max)) end
redis.call('HSET', running, task_id, cjson.encode(record))
redis.call('ZADD', deadlines, string.format('%.6f', look_at), member)
redis.pcall(
  'XADD', events, 'MAXLEN', '~', 10000, '*', 'event', 'run_started', 'entry', name, 'run', cjson.encode({
    task_id = task_id, due = due, worker = worker, attempt = attempt, wait = record.wait, at = now,
  })
)
return {'go', 0}
