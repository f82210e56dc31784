-- give_up_runs: end runs of an entry as lost, as somebody wants it free at once, or they couldn't be sent; what is at work goes on, unheeded.
--
-- KEYS[1] running    hash of the entry's runs in progress
-- KEYS[2] deadlines  zset of when beat must look at each
-- KEYS[3] history    list of what became of the entry's runs, the newest first
-- KEYS[4] events     stream of what has happened
-- KEYS[5] failures   stream of the runs that have failed
-- KEYS[6] failing    how many runs of the entry have failed in a row
-- KEYS[7] streaks    zset of the entries whose last run has failed, by how many have in a row
-- KEYS[8] figures    hash of what was counted since it was last looked at
-- KEYS[9] expected   zset of the entries whose runs are tracked, by when one must have succeeded
-- ARGV[1] wake       channel that wakes beat
-- ARGV[2] name       the entry's
-- ARGV[3] problem    who gives them up, or why
-- ARGV[4..] four for each run:
--   task_id          the run's
--   due              its due time, UNIX seconds
--   state            how far it is
--   attempt          1, and one more for each retry
-- A run that isn't like that any more is left alone. The tasks of its workflow are forgotten with it. What waits goes.
--
-- Returns {unrecorded, done}
--   unrecorded  '', or the server's error when what became of a run couldn't be recorded or told of; it has ended all
--               the same
--   done        for each run '1' if it was given up, or ''
local running, deadlines, history, events, failures, failing = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local streaks, figures, expected = KEYS[7], KEYS[8], KEYS[9]
local wake, name, problem = ARGV[1], ARGV[2], ARGV[3]

local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
local keys = {
  running = running, deadlines = deadlines, history = history, events = events, failures = failures, failing = failing,
  streaks = streaks, figures = figures, expected = expected,
}

local function forget_children(root)
  local found = redis.call('HGETALL', running)
  for i = 1, #found, 2 do
    local record = decode_record(found[i + 1])
    if record and record.root == root then
      redis.call('HDEL', running, found[i])
      redis.call('ZREM', deadlines, found[i] .. '\0' .. running)
    end
  end
end

local done = {}
for i = 4, #ARGV, 4 do
  local task_id, due, state, attempt = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local record = decode_record(redis.call('HGET', running, task_id))
  local is_like_that = record and record.state ~= 'ended' and record.state == state and is_same_time(record.due, due)
  if is_like_that and (tonumber(record.attempt) or 1) == attempt then
    forget_children(task_id)
    finish_run(keys, {
      name = name, task_id = task_id, due = due, outcome = 'lost', error = problem, record = record, now = now, wake = wake,
    })
    done[#done + 1] = '1'
  else
    done[#done + 1] = ''
  end
end
if redis.call('HGET', running, '') then poke(keys, now, wake) end
return {unrecorded, done}
