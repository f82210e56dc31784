-- read_owners: return the owners of entries.
--
-- KEYS[1..] entries  the entries' keys
--
-- Returns the owner of each; '': it has none, or doesn't exist, or its owner is too long to be a name.
local owners = {}
for i = 1, #KEYS do
  local owner = redis.pcall('HGET', KEYS[i], 'owner')
  owners[i] = type(owner) == 'string' and #owner <= 16384 and owner or '' -- a key that isn't a hash has none
end
return owners
