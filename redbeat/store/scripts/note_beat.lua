-- note_beat: note that a beat shares the parts of the schedule, and forget those that haven't said so for long, or say so in a
-- time that hasn't come yet.
--
-- KEYS beats    zset of the beats that share it, scored by when they said so last
-- KEYS layout   hash: into how many parts the schedule is divided
-- ARGV beat     its id; '': nothing is noted, and it is only told who is there
-- ARGV life_ms  for how long it is noted, milliseconds
--
-- Returns how often the layout was changed, as the hash has it ('0' where there is none), and then each beat's id, and
-- how long ago it has said so, milliseconds.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local silent = redis.call('ZRANGEBYSCORE', beats, '-inf', string.format('(%.6f', now - life_ms / 1000))
-- the server's clock has been set back since, or it never was one of ours
local early = redis.call('ZRANGEBYSCORE', beats, string.format('(%.6f', now + life_ms / 1000), '+inf')
local generation = redis.call('HGET', layout, 'generation')
-- before anything is written, as who may not do this shall not leave a key that lives for ever
redis.call('PEXPIRE', beats, life_ms)
for _, gone in ipairs({silent, early}) do
  for _, one in ipairs(gone) do redis.call('ZREM', beats, one) end
end
if beat ~= '' then redis.call('ZADD', beats, string.format('%.6f', now), beat) end
redis.call('PEXPIRE', beats, life_ms)

local found = redis.call('ZRANGE', beats, 0, -1, 'WITHSCORES')
local reply = {generation or '0'}
for place = 1, #found, 2 do
  table.insert(reply, found[place])
  table.insert(reply, math.max(math.floor((now - tonumber(found[place + 1])) * 1000), 0))
end
return reply
