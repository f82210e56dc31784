-- release_lock: release the lock, if the caller holds it, and wake the standbys.
--
-- KEYS lock   the leader's token
-- KEYS mark   says for a minute who has released the lock, so that no late command of the caller takes it back; the
--             lock again: nothing does
-- ARGV token  the caller's token
-- ARGV wake   channel on which the change is announced
--
-- Returns 1 when it was released, 0 when the caller didn't hold it
local holder = redis.call('GET', lock)
if holder and holder ~= token then return 0 end
if mark ~= lock then redis.pcall('SET', mark, token, 'PX', 60000) end -- not when the server is full
if not holder then return 0 end
redis.call('DEL', lock)
redis.pcall('PUBLISH', wake, 'released')
return 1
