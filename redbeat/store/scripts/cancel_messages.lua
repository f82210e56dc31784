-- cancel_messages: remove stored messages that haven't been sent yet, with their entries.
--
-- KEYS[1] later      zset of entry keys, scored by when their messages are to be sent
-- KEYS[2..] two for each message:
--   entry            the key of its entry
--   body             the key of its body
-- An entry without a message is another one's, and is left alone.
--
-- Returns for each {message, body}: JSON, and the body if it isn't in there, '' if it is; or nil if there was none
local later = KEYS[1]
local removed = {}
for i = 2, #KEYS, 2 do
  local entry, body_key = KEYS[i], KEYS[i + 1]
  local message = redis.pcall('HGET', entry, 'message')
  removed[i / 2] = false
  if type(message) == 'string' then
    local body = redis.pcall('GET', body_key)
    redis.call('ZREM', later, entry)
    redis.call('DEL', entry)
    if type(body) == 'string' then redis.call('DEL', body_key) end
    removed[i / 2] = {message, type(body) == 'string' and body or ''}
  end
end
return removed
