-- cancel_messages: remove stored messages that haven't been sent yet, with their entries.
--
-- KEYS[1] later      zset of entry keys, scored by when their messages are to be sent
-- KEYS[2..] entries  the keys of their entries
-- ARGV[1] seen       only a message with this revision is removed; '': any
-- An entry without a message is another one's, and is left alone; if it is among the stored ones, it isn't any more.
--
-- Returns for each its message, JSON, '' if it had none; or nil if it wasn't stored
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
  elseif type(message) ~= 'string' and redis.call('ZREM', later, entry) == 1 then
    removed[i - 1] = ''
  end
end
return removed
