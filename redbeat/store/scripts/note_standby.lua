-- note_standby: note that a beat stands by, and forget those that haven't said so for long.
--
-- Uses check_layout, clock
-- KEYS standbys  zset of who stands by, scored by when they looked at the lock last
-- ARGV who       the beat
-- ARGV life_ms   for how long it is noted, milliseconds
--
-- Returns how many beats stand by.
local old = redis.call('ZRANGEBYSCORE', standbys, '-inf', string.format('(%.6f', tonumber(now) - life_ms / 1000))
-- before anything is written, as who may not do this shall not leave a key that lives for ever
redis.call('PEXPIRE', standbys, life_ms)
for _, one in ipairs(old) do redis.call('ZREM', standbys, one) end
redis.call('ZADD', standbys, now, who)
redis.call('PEXPIRE', standbys, life_ms)
return redis.call('ZCOUNT', standbys, '-inf', '+inf')
