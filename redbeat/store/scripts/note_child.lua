-- note_child: note a task of a run's workflow, before it is sent. A task with the run's own id takes its place: the task
-- has replaced itself by a chain, a group or a chord, and this is the end of that.
--
-- Uses check_layout, clock, run_records
-- KEYS running    hash of the entry's runs in progress
-- KEYS deadlines  zset of when beat must look at each
-- ARGV root       the run's task id
-- ARGV task_id    that of the task
-- ARGV due        the run's due time, UNIX seconds
-- ARGV task       the name of the task, '' if it isn't known
--
-- Returns 1 when it was noted, 0 when it is known, or the run isn't in progress any more
local run = read_run(running, root)
if not run then return 0 end
if task_id == root then
  if run.state == 'started' then  -- it hasn't been told of the end of its first task yet
    run.followed = 1
    store_run(running, root, run)
    return 1
  end
  if run.state ~= 'spawned' then return 0 end
  run.state, run.outcome, run.error, run.ran, run.delivery = 'retrying', nil, nil, nil, nil
  store_run(running, root, run, (tonumber(run.queue) or 86400) + 1)
  return 1
end
local record = {state = 'sent', root = root, due = due, sent = now, queue = run.queue, task = task ~= '' and task or nil}
if redis.call('HGET', running, task_id) then return 0 end
store_run(running, task_id, record, (tonumber(run.queue) or 86400) + 1)
return 1
