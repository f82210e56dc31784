-- take_bodies: remove and return the bodies of stored messages that are gone.
--
-- Uses check_layout
-- KEYS later      zset of entry keys, scored by when their messages are to be sent
-- KEYS entries[]  the keys of their entries
-- KEYS bodies[]   the keys of their bodies, in the same order
--
-- Returns for each its body; or nil if there is none, or its message is stored
local taken = {}
for i, entry in ipairs(entries) do
  local is_stored = redis.call('ZSCORE', later, entry) and redis.call('EXISTS', entry) == 1
  local body = not is_stored and redis.pcall('GET', bodies[i])
  taken[i] = type(body) == 'string' and redis.call('DEL', bodies[i]) == 1 and body
end
return taken
