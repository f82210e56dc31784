-- cancel_messages: remove stored messages that haven't been sent yet, with their entries.
--
-- KEYS[1] later      zset of entry keys, scored by when their messages are to be sent
-- KEYS[2..] entries  the keys of their entries
-- ARGV[1] seen       only a message with this revision is removed; '': any
-- An entry without a message is another one's, and is left alone.
--
-- Returns for each its message, JSON; or nil if there was none
local later, seen = KEYS[1], ARGV[1]
local removed = {}
for i = 2, #KEYS do
  local entry = KEYS[i]
  local message = redis.pcall('HGET', entry, 'message')
  removed[i - 1] = false
  if type(message) == 'string' and (seen == '' or redis.call('HGET', entry, 'revision') == seen) then
    redis.call('ZREM', later, entry)
    redis.call('DEL', entry)
    removed[i - 1] = message
  end
end
return removed
