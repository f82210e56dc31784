-- cancel_messages: remove stored messages that haven't been sent yet, with their entries.
--
-- Uses check_layout
-- KEYS later      zset of entry keys, scored by when their messages are to be sent
-- KEYS entries[]  the keys of their entries
-- ARGV seen       only a message with this revision is removed; '': any
-- An entry without a message is another one's, and is left alone; if it is among the stored ones, it isn't any more.
--
-- Returns for each its message, JSON, '' if it had none; or nil if it wasn't stored
local removed = {}
for i, entry in ipairs(entries) do
  local message = redis.pcall('HGET', entry, 'message')
  removed[i] = false
  if type(message) == 'string' and (seen == '' or redis.call('HGET', entry, 'revision') == seen) then
    redis.call('ZREM', later, entry)
    redis.call('DEL', entry)
    removed[i] = message
  elseif type(message) ~= 'string' and redis.call('ZREM', later, entry) == 1 then
    removed[i] = ''
  end
end
return removed
