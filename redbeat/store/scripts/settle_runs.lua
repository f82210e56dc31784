-- settle_runs: do what beat has decided about runs whose deadlines have come, if they are still as it has read them.
--
-- Uses check_layout, clock, hold_lock, count_figures, run_records, finish_run
-- KEYS schedule     zset of entry keys, scored by due time
-- KEYS deadlines    zset of when beat must look at each run
-- KEYS events       stream of what has happened
-- KEYS failures     stream of the runs that have failed
-- KEYS streaks      zset of the entries whose last run has failed, by how many have in a row
-- KEYS figures      hash of what was counted since it was last looked at
-- KEYS expected     zset of the entries whose runs are tracked, by when one must have succeeded
-- KEYS running[]    of each run the hash of its entry's runs in progress,
-- KEYS histories[]  its entry's history,
-- KEYS failing[]    how many of its last runs have failed in a row,
-- KEYS entries[]    and the entry's own key
-- ARGV wake         channel that wakes beat
-- ARGV rows         of each run:
--   action           'end': it ends with this outcome; 'overdue': it takes too long; 'postpone': look again later;
--                    'look': the entry's waiting run may go; 'forget': there is no run
--   name             the entry's
--   task_id          the run's; '' with 'look'
--   member           the member of the deadlines
--   score            the deadline that the caller has read; another one now: the run is left alone
--   text             the record that the caller has read, '' for none; another one now: the run is left alone
--   word             with 'end' the outcome, with 'overdue' 'revoke' if it is revoked
--   seconds          with 'postpone' and 'overdue' in how many to look again
--
-- Returns {status, unrecorded, done}
--   status    'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--             holds it (then nothing was written)
--   unrecorded  '', or the server's error when what became of a run couldn't be recorded or told of; it has ended all
--             the same
--   done      for each entry the outcome that the run has ended with now, 'overdue' if it is so from now on, or ''
if status == 'lost' then return {status, '', {}} end

-- make the run that waits due, as the run that it is; the entry gets its score back with that run's commit
local function release(running, failing, entry, member)
  local waiting = decode_waiting(redis.call('HGET', running, ''))
  local due = waiting and waiting.due
  if due and tonumber(due) > tonumber(now) + 86400 then due = nil end
  local score = redis.call('ZSCORE', schedule, entry)
  if not due or not score or redis.call('TYPE', entry).ok ~= 'hash' then
    redis.call('HDEL', running, '')
    redis.call('ZREM', deadlines, member)
    if not score then redis.pcall('DEL', failing) end  -- it was deleted, or has ended, while its last run was in progress
    return
  end
  if tonumber(due) > tonumber(now) then  -- the clock was set back: all that is due waits for its time
    redis.call('ZADD', deadlines, later(due, 0), member)
    return
  end
  if find_holder(running, '', due, '', now) then  -- whose end lets beat look again
    redis.call('ZREM', deadlines, member)
    return
  end
  local lease = redis.call('HGET', entry, 'lease')
  local hidden_by = lease and string.match(lease, '^([%d.e+]+) ')
  if hidden_by and tonumber(hidden_by) == tonumber(score) then  -- it is on its way already, for this run or another
    redis.call('ZADD', deadlines, later(now, 1), member)
    return
  end
  redis.call('ZADD', schedule, 'XX', now, entry)
  local released_at = redis.call('ZSCORE', schedule, entry)
  redis.call('HSET', entry, 'lease', released_at .. ' ' .. due .. ' next ' .. score)
  redis.call('ZADD', deadlines, later(now, 30), member)  -- the commit removes it
end

local done = {}
for i, row in ipairs(rows) do
  local running, failing, entry = running[i], failing[i], entries[i]
  local action, name, task_id, member, word, seconds = row.action, row.name, row.task_id, row.member, row.word, row.seconds
  local keys = {
    running = running, deadlines = deadlines, history = histories[i], events = events, failures = failures, failing = failing,
    streaks = streaks, figures = figures, expected = expected,
  }
  local found = redis.pcall('HGET', running, task_id)
  local is_hash = type(found) ~= 'table'
  found = is_hash and found or ''
  local what = ''
  if redis.call('ZSCORE', deadlines, member) == row.score and (action == 'look' or found == row.text) then
    local record = decode_record(found)
    if action == 'forget' or not is_hash then
      if is_hash then redis.call('HDEL', running, task_id) end
      redis.call('ZREM', deadlines, member)
      if is_hash and redis.call('HGET', running, '') then poke(keys, now, wake) end
    elseif action == 'look' then
      release(running, failing, entry, member)
    elseif action == 'postpone' then
      redis.call('ZADD', deadlines, later(now, seconds), member)
    elseif action == 'overdue' then
      record.overdue = 1
      if word == 'revoke' then record.terminate = 'overdue' end
      what = 'overdue'
      redis.call('HSET', running, task_id, cjson.encode(record))
      redis.call('ZADD', deadlines, later(now, seconds), member)
      add_event(events, name, 'run_overdue', {
        task_id = task_id, due = record.due, worker = record.worker, attempt = record.attempt, started = record.started,
        at = now,
      })
      if redis.call('HGET', running, '') then poke(keys, now, wake) end
    else
      local run = {
        name = name, task_id = task_id, due = record.due, outcome = word, error = record.error, record = record,
        now = now, wake = wake,
      }
      -- Redis was away between two attempts, and the worker of the first one was killed before it could tell; or a
      -- message was delivered twice. One that has only expired has done nothing
      local after = word == 'lost' and record.after
      if type(after) == 'table' and after.outcome ~= 'expired' then
        for _, member in ipairs({'outcome', 'error', 'ran', 'worker', 'attempt', 'delivery'}) do
          run[member] = after[member] ~= '' and after[member] or nil
        end
      end
      local ended = finish_run(keys, run)
      if ended == 'ended' or ended == 'kept' then what = run.outcome end
    end
  end
  done[i] = what
end
return {status, unrecorded, done}
