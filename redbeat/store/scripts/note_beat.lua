-- note_beat: note that a beat is there, and forget those that haven't said so for long, or say so in a time that hasn't
-- come yet: beats that share the parts of a schedule, or that stand by.
--
-- Uses check_layout, clock
-- KEYS beats    zset of the beats, scored by when they said so last
-- KEYS layout   hash: into how many parts the schedule is divided (beats again: the caller isn't told who is there)
-- ARGV beat     its id; '': nothing is noted, and it is only told who is there
-- ARGV life_ms  for how long it is noted, milliseconds
--
-- Returns how often the layout was changed, as the hash has it ('0' where there is none), and then each beat's id, and
-- how long ago it has said so, milliseconds.
local life_seconds = life_ms / 1000
local silent = redis.call('ZRANGEBYSCORE', beats, '-inf', string.format('(%.6f', tonumber(now) - life_seconds))
-- the server's clock has been set back since, or it never was one of ours
local early = redis.call('ZRANGEBYSCORE', beats, string.format('(%.6f', tonumber(now) + life_seconds), '+inf')
local reply = {layout ~= beats and redis.call('HGET', layout, 'generation') or '0'}
-- before anything is written, as who may not do this shall not leave a key that lives for ever
redis.call('PEXPIRE', beats, life_ms)
for _, one in ipairs(silent) do redis.call('ZREM', beats, one) end
for _, one in ipairs(early) do redis.call('ZREM', beats, one) end
if beat ~= '' then redis.call('ZADD', beats, now, beat) end
redis.call('PEXPIRE', beats, life_ms)

local found = layout ~= beats and redis.call('ZRANGE', beats, 0, -1, 'WITHSCORES') or {}
for place = 1, #found, 2 do
  reply[#reply + 1] = found[place]
  reply[#reply + 1] = math.max(math.floor((tonumber(now) - tonumber(found[place + 1])) * 1000), 0)
end
return reply
