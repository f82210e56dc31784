-- read_head: return the server's clock, and when the first entry is due, or a run must be looked at; nothing is written.
--
-- Uses clock
-- KEYS schedule   zset of entry keys, scored by due time
-- KEYS deadlines  zset of when beat must look at each run in progress
-- KEYS later      zset of stored messages, scored by when they are to be sent
--
-- Returns {now, head, deadline, later_head}
--   now       the server's clock, UNIX seconds with microseconds, a string
--   head      the lowest score in the schedule that isn't negative, a string, '' for none
--   deadline  the lowest score in deadlines, a string, '' for none
--   later_head  the lowest score in later, a string, '' for none
local head = redis.call('ZRANGEBYSCORE', schedule, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local deadline = redis.pcall('ZRANGEBYSCORE', deadlines, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local first = redis.pcall('ZRANGEBYSCORE', later, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {now, head[2] or '', deadline[2] or '', first[2] or ''}
