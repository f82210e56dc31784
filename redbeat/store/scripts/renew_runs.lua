-- renew_runs: renew the leases of all runs that a worker has in progress, and say that the worker lives.
--
-- Uses check_layout, clock, run_records
-- KEYS deadlines       zset of when beat must look at each run
-- KEYS workers         hash of the workers that track runs
-- KEYS running[]       of each run the hash of its entry's runs in progress
-- ARGV lease_ms        how long the leases live from now on
-- ARGV worker          the worker's name
-- ARGV row             what the worker says of itself, the members of a JSON object; '' to say nothing now
-- ARGV forget_seconds  workers that have said nothing for longer are removed
-- ARGV runs            of each run:
--   task_id, due   its due time in UNIX seconds
--   delivery     which delivery of its message is at work
--   attempt      1, and one more for each retry
--   age_seconds  for how long it has been at work
--
-- Returns for each run 'ok', 'gone' if it isn't this delivery's any more, or why it must be terminated
if row ~= '' then
  -- a key of another type costs what doctor knows of workers, and no lease
  redis.pcall('HSET', workers, worker, '{"at":' .. now .. ',' .. row .. '}')
  local all = redis.pcall('HGETALL', workers)
  for i = 1, all.err and 0 or #all, 2 do
    local at = tonumber(string.match(all[i + 1], '^{"at":(%d+)') or 0)
    if at < tonumber(now) - forget_seconds then redis.call('HDEL', workers, all[i]) end
  end
end

local answers = {}
for i, run in ipairs(runs) do
  local running, task_id, due, delivery = running[i], run.task_id, run.due, run.delivery
  local text = redis.pcall('HGET', running, task_id)
  local record = type(text) == 'string' and decode_record(text)
  answers[i] = 'gone'
  -- the process of a task renews its lease, too, perhaps after the main process has told of its end
  if record and is_same_time(record.due, due) and not is_over(record, delivery) then
    if record.state == 'sent' or record.state == 'retrying' then  -- Redis was away when it was begun
      record.state, record.delivery, record.worker, record.attempt = 'started', delivery, worker, run.attempt
      record.started, record.holds = later(now, -run.age_seconds), nil
      record.wait = record.wait or string.format('%.3f', math.max(record.started - tonumber(record.sent or due), 0))
      redis.call('HSET', running, task_id, cjson.encode(record))
    end
    if record.state == 'started' and record.delivery == delivery then
      local look_at = tonumber(now) + lease_ms / 1000
      if tonumber(record.max) and not record.overdue then
        look_at = math.min(look_at, tonumber(record.started) + tonumber(record.max))
      end
      redis.call('ZADD', deadlines, string.format('%.6f', look_at), task_id .. '\0' .. running)
      answers[i] = record.terminate or 'ok'
    end
  end
end
return answers
