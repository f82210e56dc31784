-- delete_entries: remove entries from the schedule with their hashes, and wake the beat.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] lock       the leader's token (the schedule's key again when the caller needs none)
-- KEYS[3] mark       who has released the lock (the lock's key again when nothing says so)
-- KEYS[4..] entries  the entries' keys, and after them
-- KEYS[..] beside    what is kept beside these entries, and goes with them
-- ARGV[1] token      '' for an application; the scheduler's token when beat removes statics
-- ARGV[2] lock_ms    time to live the lock is renewed to, milliseconds
-- ARGV[3] wake       channel on which the change is announced
-- ARGV[4] count      how many entries there are
--
-- Returns {status, deleted}
--   status   'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--            holds it (then nothing was removed)
--   deleted  how many keys there were
local schedule, lock, mark = KEYS[1], KEYS[2], KEYS[3]
local token, lock_ms, wake, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local status = hold_lock(lock, mark, token, lock_ms)
if status == 'lost' then return {status, 0} end

local deleted = 0
for i = 4, 3 + count do
  redis.call('ZREM', schedule, KEYS[i])
  deleted = deleted + redis.call('DEL', KEYS[i])
end
for i = 4 + count, #KEYS do redis.call('DEL', KEYS[i]) end
-- without the right to publish the change is made all the same, and noticed a little later
redis.pcall('PUBLISH', wake, 'deleted')
return {status, deleted}
