-- release_lock: give the lock up, when it is the caller's, and tell the standbys.
--
-- KEYS[1] lock   the leader's token
-- KEYS[2] mark   says for a minute who has released the lock, so that it hasn't vanished; the lock again: nothing does
-- ARGV[1] token  the caller's token
-- ARGV[2] wake   channel that is told
--
-- Returns 1 when it was released, 0 when it wasn't the caller's
local lock, mark = KEYS[1], KEYS[2]
local token, wake = ARGV[1], ARGV[2]

if redis.call('GET', lock) ~= token then return 0 end
redis.call('DEL', lock)
if mark ~= lock then redis.call('SET', mark, token, 'PX', 60000) end
redis.pcall('PUBLISH', wake, 'released')
return 1
