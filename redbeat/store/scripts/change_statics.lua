-- change_statics: store which entries come from beat_schedule, and who owns them.
--
-- KEYS[1] statics  set of those entries' names
-- KEYS[2] lock     the leader's token (the set's key again when no lock is configured)
-- KEYS[3] mark     who has released the lock (the lock's key again when nothing says so)
-- KEYS[4] owners   set of 'owner, tab, name': whose beat_schedule has an entry
-- ARGV[1] token    the caller's token, '' when no lock is configured
-- ARGV[2] lock_ms  time to live the lock is renewed to, milliseconds
-- ARGV[3] change   'add'; 'release': the owner doesn't own them any more; 'remove': nobody does
-- ARGV[4] owner    their owner
-- ARGV[5..] one for each entry:
--   name           its name
--
-- Returns 'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
-- holds it (then nothing was written)
local statics, lock, mark, owners = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, lock_ms, change, owner = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local status = hold_lock(lock, mark, token, lock_ms)
if status == 'lost' then return status end

-- first of all, as this fails before anything is written if these aren't sets; no name is ''
redis.call('SREM', owners, '')
if change ~= 'release' then redis.call(change == 'add' and 'SADD' or 'SREM', statics, unpack(ARGV, 5)) end
local owned = {}
for at = 5, #ARGV do owned[#owned + 1] = owner .. '\t' .. ARGV[at] end
redis.call(change == 'add' and 'SADD' or 'SREM', owners, unpack(owned))
return status
