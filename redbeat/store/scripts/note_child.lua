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
local run = decode_record(redis.call('HGET', running, root))
if not run then return 0 end
if task_id == root then
  if run.state == 'started' then  -- it hasn't been told of the end of its first task yet
    run.followed = 1
    redis.call('HSET', running, root, cjson.encode(run))
    return 1
  end
  if run.state ~= 'spawned' then return 0 end
  run.state, run.outcome, run.error, run.ran, run.delivery = 'retrying', nil, nil, nil, nil
  redis.call('HSET', running, root, cjson.encode(run))
  redis.call('ZADD', deadlines, later(now, (tonumber(run.queue) or 86400) + 1), root .. '\0' .. running)
  return 1
end
local record = {state = 'sent', root = root, due = due, sent = now, queue = run.queue, task = task ~= '' and task or nil}
if redis.call('HSETNX', running, task_id, cjson.encode(record)) == 0 then return 0 end
redis.call('ZADD', deadlines, later(now, (tonumber(run.queue) or 86400) + 1), task_id .. '\0' .. running)
return 1
