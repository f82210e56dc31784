-- read_status: return who leads, and how many entries are due and messages are stored; nothing is written.
--
-- Uses clock
-- KEYS schedule  zset of entry keys, scored by due time
-- KEYS lock      the leader's token (the schedule's key again when no lock is configured)
-- KEYS tick      when the leader's last tick was
-- KEYS later     zset of stored messages, scored by when they are to be sent
-- ARGV late_ms   messages that should have been sent longer ago are overdue, milliseconds
--
-- Returns {now, token, rest_ms, ticked, due, oldest, stored, overdue, first, entries}
--   now      the server's clock, UNIX seconds with microseconds, a string
--   token    the token in the lock; '': nobody leads, or no lock is configured
--   rest_ms  how long the lock lives, milliseconds; -1: for ever; -2: there is none
--   ticked   when the leader last did something, UNIX seconds, a string; '': not known
--   due      how many entries are due
--   oldest   the lowest score of these, a string, '' for none; scores of 0 don't count, as they mean "now"
--   stored   how many messages are stored; -1: their key has another type
--   overdue  how many of these are overdue
--   first    the lowest score of those that should have been sent, a string, '' for none
--   entries  how many there are
local token, rest_ms, ticked = false, -2, redis.pcall('GET', tick)
if lock ~= schedule then
  token, rest_ms = redis.call('GET', lock), redis.call('PTTL', lock)
end
if type(ticked) ~= 'string' then ticked = '' end  -- a key of another type, which the leader overwrites
local due = redis.call('ZCOUNT', schedule, 0, now)
local oldest = redis.call('ZRANGEBYSCORE', schedule, '(0', now, 'WITHSCORES', 'LIMIT', 0, 1)
local stored, overdue, first = redis.pcall('ZCOUNT', later, '-inf', '+inf'), 0, {}
if type(stored) ~= 'number' then
  stored = -1
else
  overdue = redis.call('ZCOUNT', later, 0, string.format('%.6f', tonumber(now) - late_ms / 1000))
  first = redis.call('ZRANGEBYSCORE', later, '(0', now, 'WITHSCORES', 'LIMIT', 0, 1)
end
local entries = redis.call('ZCOUNT', schedule, '-inf', '+inf')  -- not everybody has the right to ZCARD
return {now, token or '', rest_ms, ticked, due, oldest[2] or '', stored, overdue, first[2] or '', entries}
