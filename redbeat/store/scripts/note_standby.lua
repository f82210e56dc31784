-- note_standby: note that a beat stands by, and forget those that haven't said so for long.
--
-- KEYS[1] standbys  zset of who stands by, scored by when they looked at the lock last
-- ARGV[1] who       the beat
-- ARGV[2] life_ms   for how long it is noted, milliseconds
--
-- Returns how many beats stand by.
local standbys = KEYS[1]
local who, life_ms = ARGV[1], tonumber(ARGV[2])

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local old = redis.call('ZRANGEBYSCORE', standbys, '-inf', string.format('(%.6f', now - life_ms / 1000))
-- before anything is written, as who may not do this shall not leave a key that lives for ever
redis.call('PEXPIRE', standbys, life_ms)
for _, one in ipairs(old) do redis.call('ZREM', standbys, one) end
redis.call('ZADD', standbys, string.format('%.6f', now), who)
redis.call('PEXPIRE', standbys, life_ms)
return redis.call('ZCOUNT', standbys, '-inf', '+inf')
