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
-- Returns {status, done}
--   status    'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--             holds it (then nothing was written)
--   done      for each entry the outcome that the run has ended with now, 'overdue' if it is so from now on, or ''
if status == 'lost' then return {status, {}} end

-- make the run that waits due, as the run that it is; the entry gets its score back with that run's commit. Returns when
-- to look at it again, nil for never
local function release(running, failing, entry)
  local waiting = decode_waiting(redis.call('HGET', running, ''))
  local due = waiting and waiting.due
  if due and tonumber(due) > tonumber(now) + 86400 then due = nil end
  local score = redis.call('ZSCORE', schedule, entry)
  if not due or not score or redis.call('TYPE', entry).ok ~= 'hash' then
    redis.call('HDEL', running, '')
    if not score then redis.pcall('DEL', failing) end  -- it was deleted, or has ended, while its last run was in progress
    return nil
  end
  if tonumber(due) > tonumber(now) then return due end  -- the clock was set back: all that is due waits for its time
  if find_holder(running, '', due, '', true) then return nil end  -- whose end lets beat look again
  local lease = redis.call('HGET', entry, 'lease')
  local hidden_by = lease and string.match(lease, '^([%d.e+]+) ')
  -- it is on its way already, for this run or another
  if hidden_by and tonumber(hidden_by) == tonumber(score) then return later(now, 1) end
  redis.call('ZADD', schedule, 'XX', now, entry)
  local released_at = redis.call('ZSCORE', schedule, entry)
  redis.call('HSET', entry, 'lease', released_at .. ' ' .. due .. ' next ' .. score)
  return later(now, 30)  -- the commit removes it
end

local function end_run(row, running, i, record)
  local run = {
    running = running, history = histories[i], failing = failing[i], name = row.name, task_id = row.task_id,
    due = record.due, outcome = row.word, error = record.error, record = record,
  }
  -- Redis was away between two attempts, and the worker of the first one was killed before it could tell; or a
  -- message was delivered twice. One that has only expired has done nothing
  local after = row.word == 'lost' and record.after
  if type(after) == 'table' and after.outcome ~= 'expired' then
    for _, member in ipairs({'outcome', 'error', 'ran', 'worker', 'attempt', 'delivery'}) do
      run[member] = after[member] ~= '' and after[member] or nil
    end
  end
  local ended = finish_run(run)
  return (ended == 'ended' or ended == 'kept') and run.outcome or ''
end

local function mark_overdue(row, running, record)
  record.overdue = 1
  if row.word == 'revoke' then record.terminate = 'overdue' end
  store_run(running, row.task_id, record)
  add_event(row.name, 'run_overdue', {
    task_id = row.task_id, due = record.due, worker = record.worker, attempt = record.attempt, started = record.started,
    at = now,
  })
  return later(now, row.seconds)
end

local done = {}
for i, row in ipairs(rows) do
  local running, member, text, look_at = running[i], row.member, redis.pcall('HGET', running[i], row.task_id), nil
  local action = type(text) == 'table' and 'drop' or row.action  -- of a key of another type the deadline goes
  text, done[i] = action ~= 'drop' and text or '', ''
  if redis.call('ZSCORE', deadlines, member) == row.score and (row.action == 'look' or text == row.text) then
    local record = decode_record(text)
    if action == 'forget' then
      redis.call('HDEL', running, row.task_id)
    elseif action == 'look' then
      look_at = release(running, failing[i], entries[i])
    elseif action == 'postpone' then
      look_at = later(now, row.seconds)
    elseif action == 'overdue' then
      look_at, done[i] = mark_overdue(row, running, record), 'overdue'
    elseif action == 'end' then
      done[i] = end_run(row, running, i, record)
    end
    if look_at then
      redis.call('ZADD', deadlines, look_at, member)
    elseif action ~= 'end' then
      redis.call('ZREM', deadlines, member)
    end
    if (action == 'forget' or action == 'overdue') and redis.call('HGET', running, '') then poke(running) end
  end
end
return {status, done}
