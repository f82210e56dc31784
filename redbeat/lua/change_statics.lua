-- change_statics: note which entries come from beat_schedule.
--
-- KEYS[1] statics  set of those entries' names
-- KEYS[2] lock     the leader's token (the set's key again when no lock is configured)
-- ARGV[1] token    the caller's token, '' when no lock is configured
-- ARGV[2] lock_ms  time to live the lock is renewed to, milliseconds
-- ARGV[3] change   'add' or 'remove'
-- ARGV[4..] one for each entry:
--   name           its name
--
-- Returns 'ok', 'retaken' when the lock was gone and is the caller's again, or 'lost' when another token
-- holds it (then nothing was written)
local statics, lock = KEYS[1], KEYS[2]
local token, lock_ms, change = ARGV[1], ARGV[2], ARGV[3]

local status = hold_lock(lock, token, lock_ms)
if status == 'lost' then return status end

redis.call(change == 'add' and 'SADD' or 'SREM', statics, unpack(ARGV, 4))
return status
