-- look_at_lock: who holds the lock, and until when.
--
-- KEYS[1] lock  the leader's token
--
-- Returns {holder, expires_ms}
--   holder      the token, '' when nobody holds it
--   expires_ms  when it ends unless it is renewed, on the server's clock, milliseconds since 1970; -1 for never
local lock = KEYS[1]

local holder = redis.call('GET', lock)
if not holder then return {'', -1} end
local time, rest_ms = redis.call('TIME'), redis.call('PTTL', lock)
if rest_ms < 0 then return {holder, -1} end
return {holder, tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + rest_ms}
