-- take_bodies: remove and return the bodies of stored messages that are gone.
--
-- KEYS[1] later      zset of entry keys, scored by when their messages are to be sent
-- KEYS[2..] entries  the keys of their entries, and after them
-- KEYS[..] bodies    the keys of their bodies, in the same order
-- ARGV[1] count      how many messages there are
--
-- Returns for each its body; or nil if there is none, or its message is stored
local later, count = KEYS[1], tonumber(ARGV[1])
local taken = {}
for i = 2, 1 + count do
  local entry, body_key = KEYS[i], KEYS[i + count]
  local is_stored = redis.call('ZSCORE', later, entry) and redis.call('EXISTS', entry) == 1
  local body = not is_stored and redis.pcall('GET', body_key)
  taken[i - 1] = false
  if type(body) == 'string' then
    redis.call('DEL', body_key)
    taken[i - 1] = body
  end
end
return taken
