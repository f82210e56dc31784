-- read_head: return the server's clock, and when the first entry is due; nothing is written.
--
-- KEYS[1] schedule  zset of entry keys, scored by due time
--
-- Returns {now, head}
--   now   the server's clock, UNIX seconds with microseconds, a string
--   head  the lowest score that isn't negative, a string, '' for none
local schedule = KEYS[1]

local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
local head = redis.call('ZRANGEBYSCORE', schedule, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {now, head[2] or ''}
