-- release_lock: give the lock up, when it is the caller's, and tell the standbys.
--
-- KEYS[1] lock   the leader's token
-- ARGV[1] token  the caller's token
-- ARGV[2] wake   channel that is told
--
-- Returns 1 when it was released, 0 when it wasn't the caller's
local lock = KEYS[1]
local token, wake = ARGV[1], ARGV[2]

if redis.call('GET', lock) ~= token then return 0 end
redis.call('DEL', lock)
redis.pcall('PUBLISH', wake, 'released')
return 1
