-- settle_run: do what beat has decided about a run whose deadline has come, if it is still as beat has read it.
--
-- Uses check_layout, clock, hold_lock, count_figures, run_records, finish_run
-- KEYS schedule     zset of entry keys, scored by due time
-- KEYS deadlines    zset of when beat must look at each run
-- KEYS events       stream of what has happened
-- KEYS failures     stream of the runs that have failed
-- KEYS streaks      zset of the entries whose last run has failed, by how many have in a row
-- KEYS figures      hash of what was counted since it was last looked at
-- KEYS expected     zset of the entries whose runs are tracked, by when one must have succeeded
-- KEYS running      hash of the entry's runs in progress
-- KEYS history      the entry's history
-- KEYS failing      how many of its last runs have failed in a row
-- KEYS entry        the entry's own key
-- ARGV wake         channel that wakes beat
-- ARGV action       'end': it ends with this outcome; 'overdue': it takes too long; 'postpone': look again later;
--                   'look': the entry's waiting run may go; 'forget': there is no run
-- ARGV name         the entry's
-- ARGV task_id      the run's; '' with 'look'
-- ARGV member       the member of the deadlines
-- ARGV score        the deadline that the caller has read; another one now: the run is left alone
-- ARGV text         the record that the caller has read, '' for none; another one now: the run is left alone
-- ARGV word         with 'end' the outcome, with 'overdue' 'revoke' if it is revoked
-- ARGV seconds      with 'postpone' and 'overdue' in how many to look again
--
-- Returns {status, done}
--   status    'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--             holds it (then nothing was written)
--   done      the outcome that the run has ended with now, 'overdue' if it is so from now on, or ''
if status == 'lost' then return {status, ''} end

-- make the run that waits due, as the run that it is; the entry gets its score back with that run's commit. Returns when
-- to look at it again, nil for never
local function release()
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

local function end_run(record)
  local run = {
    running = running, history = history, failing = failing, name = name, task_id = task_id,
    due = record.due, outcome = word, error = record.error, record = record,
  }
  -- Redis was away between two attempts, and the worker of the first one was killed before it could tell; or a
  -- message was delivered twice. One that has only expired has done nothing
  local after = word == 'lost' and record.after
  if type(after) == 'table' and after.outcome ~= 'expired' then
    for _, member in ipairs({'outcome', 'error', 'ran', 'worker', 'attempt', 'delivery'}) do
      run[member] = after[member] ~= '' and after[member] or nil
    end
  end
  local ended = finish_run(run)
  return (ended == 'ended' or ended == 'kept') and run.outcome or ''
end

local function mark_overdue(record)
  record.overdue = 1
  if word == 'revoke' then record.terminate = 'overdue' end
  store_run(running, task_id, record)
  add_event(name, 'run_overdue', {
    task_id = task_id, due = record.due, worker = record.worker, attempt = record.attempt, started = record.started,
    at = now,
  })
  return later(now, seconds)
end

local stored, look_at, done = redis.pcall('HGET', running, task_id), nil, ''
local is_corrupt = type(stored) == 'table'  -- a key of another type: the deadline goes
stored = not is_corrupt and stored or ''
if redis.call('ZSCORE', deadlines, member) ~= score or (action ~= 'look' and stored ~= text) then return {status, ''} end
if is_corrupt then action = 'drop' end
if action == 'forget' then
  redis.call('HDEL', running, task_id)
elseif action == 'look' then
  look_at = release()
elseif action == 'postpone' then
  look_at = later(now, seconds)
elseif action == 'overdue' then
  look_at, done = mark_overdue(decode_record(stored)), 'overdue'
elseif action == 'end' then
  done = end_run(decode_record(stored))
end
if look_at then
  redis.call('ZADD', deadlines, look_at, member)
elseif action ~= 'end' then
  redis.call('ZREM', deadlines, member)
end
if (action == 'forget' or action == 'overdue') and redis.call('HGET', running, '') then poke(running) end
return {status, done}
