-- store_messages: store messages that are to be sent later, each with an entry; one with the same task id is replaced.
--
-- KEYS[1] later      zset of entry keys, scored by when their messages are to be sent
-- KEYS[2..] entries  the keys of their entries, and after them
-- KEYS[..] bodies    the keys of the bodies of those messages that haven't theirs
-- ARGV[1] wake       channel on which it is announced if beat may have to look soon
-- ARGV[2] count      how many messages there are
-- ARGV[3] must_exist  1: each replaces another one, as it belongs to another part of the schedule, and is on its way
-- ARGV[4..] six for each entry:
--   score            when it is to be sent, UNIX seconds
--   definition       of its entry
--   policy           of its entry
--   revision         another one for each message that is stored
--   message          JSON
--   body             JSON about a body that isn't; '' when the message has it
-- Beat looks at the first score at least once a second, so only what is due within seconds is announced.
--
-- Returns how many messages were stored; 0: one that must exist doesn't any more, and nothing was written
local later, wake, count, must_exist = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local soon_seconds = 5

local last = redis.call('TIME')[1] + soon_seconds
local is_soon, next_body = false, 2 + count
for place = 2, must_exist == '1' and 1 + count or 0 do
  if redis.call('EXISTS', KEYS[place]) == 0 then return 0 end
end
for i = 2, 1 + count do
  local entry, at = KEYS[i], 4 + (i - 2) * 6
  local score, definition, policy, revision = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local message, body = ARGV[at + 4], ARGV[at + 5]
  -- first, as it may be refused: the key has another type, or there is no memory; then nothing is written
  redis.call('ZADD', later, score, entry)
  redis.call('DEL', entry)
  redis.call('HSET', entry, 'definition', definition, 'policy', policy, 'revision', revision, 'message', message)
  if body ~= '' then
    redis.call('SET', KEYS[next_body], body)
    redis.call('HSET', entry, 'body_bytes', #body)  -- a claim counts them
    next_body = next_body + 1
  end
  is_soon = is_soon or tonumber(score) <= last
end
-- without the right to publish they are stored all the same, and noticed a little later
if is_soon then redis.pcall('PUBLISH', wake, 'stored') end
return count
