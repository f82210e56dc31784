-- commit_runs: record what was decided about claimed entries, changing only what was read.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] lock       the leader's token (the schedule's key again when no lock is configured)
-- KEYS[3..] entries  the entries' keys
-- ARGV[1] token      the caller's token, '' when no lock is configured
-- ARGV[2] lock_ms    time to live the lock is renewed to, milliseconds
-- ARGV[3..] seven for each entry:
--   type             the key's type when it was claimed; anything else now: leave the entry alone
--   decided_on       '' or '=' and the definition it was decided on; another one now: leave the entry alone
--   claimed_score    the score that new_score replaces; another one now: that one stays
--   new_score        '' to leave the score, 'remove' to unschedule, else the next due time
--   claimed_meta     the meta that new_meta replaces ('' for none); another one now: that one stays
--   new_meta         '' to leave the meta
--   new_error        '' to leave it, 'clear' to remove it, else JSON
--
-- Returns {status, results}
--   status   'ok', 'retaken' when the lock was gone and is the caller's again, or 'lost' when another token
--            holds it (then nothing was written)
--   results  for each entry 1 when its score was written as decided, else 0
local schedule, lock = KEYS[1], KEYS[2]
local token, lock_ms = ARGV[1], ARGV[2]

local status = hold_lock(lock, token, lock_ms)
if status == 'lost' then return {status, {}} end

local results = {}
for i = 3, #KEYS do
  local key, at = KEYS[i], 3 + (i - 3) * 7
  local kind, decided_on, claimed_score, new_score = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local claimed_meta, new_meta, new_error = ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]

  local is_unchanged = redis.call('TYPE', key).ok == kind
  if is_unchanged and decided_on ~= '' then
    is_unchanged = '=' .. (redis.call('HGET', key, 'definition') or '') == decided_on
  end
  results[i - 2] = 0
  if is_unchanged then
    if kind == 'hash' then
      if new_meta ~= '' and (redis.call('HGET', key, 'meta') or '') == claimed_meta then
        redis.call('HSET', key, 'meta', new_meta)
      end
      if new_error == 'clear' then
        redis.call('HDEL', key, 'error')
      elseif new_error ~= '' then
        redis.call('HSET', key, 'error', new_error)
      end
    end
    if new_score ~= '' and redis.call('ZSCORE', schedule, key) == claimed_score then
      if new_score == 'remove' then
        redis.call('ZREM', schedule, key)
      else
        redis.call('ZADD', schedule, 'XX', new_score, key)
      end
      results[i - 2] = 1
    end
  end
end
return {status, results}
