-- end_run: note what became of a run, or that its task has asked for another attempt.
--
-- Uses check_layout, clock, count_figures, run_records, finish_run
-- KEYS running        hash of the entry's runs in progress
-- KEYS deadlines      zset of when beat must look at each
-- KEYS history        list of what became of the entry's runs, the newest first
-- KEYS events         stream of what has happened
-- KEYS failures       stream of the runs that have failed
-- KEYS failing        how many runs of the entry have failed in a row
-- KEYS streaks        zset of the entries whose last run has failed, by how many have in a row
-- KEYS figures        hash of what was counted since it was last looked at
-- KEYS expected       zset of the entries whose runs are tracked, by when one must have succeeded
-- ARGV wake           channel that wakes beat
-- ARGV name           the entry's
-- ARGV task_id        the run's
-- ARGV due            its due time, UNIX seconds
-- ARGV delivery       which delivery of its message it was
-- ARGV worker         the worker's name
-- ARGV attempt        1, and one more for each retry
-- ARGV outcome        what became of it; 'retrying' and 'requeued': it goes on
-- ARGV problem        the exception, '' for none
-- ARGV ran            how long its task took, seconds; '' if that isn't known
-- ARGV retry_seconds  with 'retrying' in how many seconds the next attempt may begin
-- ARGV root           the task id of the run whose workflow the task belongs to, '' for the run itself
--
-- Returns 'ended', 'retrying', 'kept', 'spawned', 'late' if it was given up or has ended before, or 'other' if another
-- delivery of its message is at work
local record = read_run(running, task_id, due)  -- another one is of an entry with a task id of its own
local goes_on = outcome == 'retrying' or outcome == 'requeued'
if record and record.delivery ~= delivery and record.state == 'started' then
  -- while Redis is away the next attempt may end before it is told that the one before it is over
  if not goes_on and outcome ~= 'superseded' then
    record.after = {outcome = outcome, error = problem, ran = ran, worker = worker, attempt = attempt, delivery = delivery}
    store_run(running, task_id, record)
  end
  return 'other'
end
if record and (record.state == 'ended' or record.state == 'spawned') then
  return record.delivery == delivery and 'late' or 'other'
end

if record and record.followed and outcome == 'ignored' then  -- what it was replaced by ends with its own id
  record.followed, outcome, goes_on = nil, 'requeued', true
end
if goes_on and not record then return 'late' end
if not record and root ~= '' then record = {root = root} end  -- it was given up, or its begin never arrived
if goes_on and record.after and (tonumber(record.after.attempt) or 0) >= attempt then  -- no further
  local after = record.after
  outcome, problem, ran, worker = after.outcome, after.error, after.ran, after.worker
  attempt, delivery, goes_on = after.attempt, after.delivery, false
end
if goes_on then
  record.state, record.delivery, record.error = 'retrying', nil, problem ~= '' and problem or nil
  if not find_holder(running, task_id, due, '') then record.overdue = nil end  -- it holds its entry again
  if record.terminate == 'overdue' then record.terminate = nil end
  record.over = record.over or {}
  record.over[#record.over + 1] = delivery
  if #record.over > 10 then table.remove(record.over, 1) end
  if outcome == 'retrying' then record.attempt = attempt + 1 end
  record.eta = later(now, retry_seconds)
  store_run(running, task_id, record, retry_seconds + (tonumber(record.queue) or default_queue_seconds) + 1)
  return 'retrying'
end

return finish_run({
  running = running, history = history, failing = failing, name = name, task_id = task_id, due = due, outcome = outcome,
  error = problem ~= '' and problem or nil, record = record, ran = ran ~= '' and ran or nil, worker = worker,
  attempt = attempt, delivery = delivery,
})
