-- store_messages: store messages that are to be sent later, each with an entry; one with the same task id is replaced.
--
-- KEYS[1] later      zset of entry keys, scored by when their messages are to be sent
-- KEYS[2..] two for each message:
--   entry            the key of its entry
--   body             the key of its body
-- ARGV[1] wake       channel on which it is announced if beat may have to look soon
-- ARGV[2..] six for each message:
--   score            when it is to be sent, UNIX seconds
--   definition       of its entry
--   policy           of its entry
--   revision         another one for each message that is stored
--   message          JSON
--   body             JSON about a body that isn't; '' when the message has it
-- Beat looks at the first score at least once a second, so only what is due within seconds is announced.
--
-- Returns how many messages were stored
local later, wake = KEYS[1], ARGV[1]
local soon_seconds = 5

local last = redis.call('TIME')[1] + soon_seconds
local is_soon, stored = false, 0
for i = 2, #KEYS, 2 do
  local entry, body_key, at = KEYS[i], KEYS[i + 1], 2 + stored * 6
  local score, definition, policy, revision, message, body = unpack(ARGV, at, at + 5)
  redis.call('DEL', entry)
  redis.call('HSET', entry, 'definition', definition, 'policy', policy, 'revision', revision, 'message', message)
  if body ~= '' then redis.call('SET', body_key, body) end
  redis.call('ZADD', later, score, entry)
  is_soon = is_soon or tonumber(score) <= last
  stored = stored + 1
end
-- without the right to publish they are stored all the same, and noticed a little later
if is_soon then redis.pcall('PUBLISH', wake, 'stored') end
return stored
