-- note_beat: note that a beat is there, and forget those that haven't said so for long, or say so in a time that hasn't
-- come yet.
--
-- Uses check_layout, clock
-- KEYS beats    zset of the beats' tokens, scored by when they said so last
-- KEYS layout   hash: into how many parts the schedule is divided
-- ARGV beat     its token; '': nothing is noted, and it is only told who is there
-- ARGV life_ms  for how long it is noted, milliseconds
--
-- Returns how often the layout was changed, as the hash has it ('0' where there is none), and then each beat's token.
local life_seconds = life_ms / 1000
local silent = redis.call('ZRANGEBYSCORE', beats, '-inf', string.format('(%.6f', tonumber(now) - life_seconds))
-- the server's clock has been set back since, or it never was one of ours
local early = redis.call('ZRANGEBYSCORE', beats, string.format('(%.6f', tonumber(now) + life_seconds), '+inf')
local reply = {redis.call('HGET', layout, 'generation') or '0'}
for _, one in ipairs(silent) do redis.call('ZREM', beats, one) end
for _, one in ipairs(early) do redis.call('ZREM', beats, one) end
if beat ~= '' then redis.call('ZADD', beats, now, beat) end
redis.call('PEXPIRE', beats, life_ms)
for _, one in ipairs(redis.call('ZRANGE', beats, 0, -1)) do reply[#reply + 1] = one end
return reply
