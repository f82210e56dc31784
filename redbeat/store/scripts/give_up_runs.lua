-- give_up_runs: end runs of an entry as lost: a user wants it free at once, or they couldn't be sent. A task at work
-- goes on, and what becomes of it is ignored.
--
-- Uses check_layout, clock, count_figures, run_records, finish_run
-- KEYS running    hash of the entry's runs in progress
-- KEYS deadlines  zset of when beat must look at each
-- KEYS history    list of what became of the entry's runs, the newest first
-- KEYS events     stream of what has happened
-- KEYS failures   stream of the runs that have failed
-- KEYS failing    how many runs of the entry have failed in a row
-- KEYS streaks    zset of the entries whose last run has failed, by how many have in a row
-- KEYS figures    hash of what was counted since it was last looked at
-- KEYS expected   zset of the entries whose runs are tracked, by when one must have succeeded
-- ARGV wake       channel that wakes beat
-- ARGV name       the entry's
-- ARGV problem    who gives them up, or why
-- ARGV runs       of each run:
--   task_id, due   its due time in UNIX seconds
--   state        how far it is
--   attempt      1, and one more for each retry
-- A run that isn't like that any more is left alone. The tasks of its workflow are forgotten with it. What waits goes.
--
-- Returns for each run '1' if it was given up, or ''
local function forget_children(root)
  local found = redis.call('HGETALL', running)
  for i = 1, #found, 2 do
    local record = decode_record(found[i + 1])
    if record and record.root == root then forget_run(running, found[i]) end
  end
end

local done = {}
for i, run in ipairs(runs) do
  local record = read_run(running, run.task_id, run.due)
  local is_like_that = record and record.state ~= 'ended' and record.state == run.state
  done[i] = ''
  if is_like_that and (tonumber(record.attempt) or 1) == run.attempt then
    forget_children(run.task_id)
    finish_run({
      running = running, history = history, failing = failing, name = name, task_id = run.task_id, due = run.due,
      outcome = 'lost', error = problem, record = record,
    })
    done[i] = '1'
  end
end
if redis.call('HGET', running, '') then poke(running) end
return done
