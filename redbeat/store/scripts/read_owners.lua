-- read_owners: return the owners of entries.
--
-- KEYS entries[]  the entries' keys
--
-- Returns the owner of each; '': it has none, or doesn't exist, or its owner is too long to be a name.
local owners = {}
for i, key in ipairs(entries) do
  local owner = redis.pcall('HGET', key, 'owner')
  owners[i] = type(owner) == 'string' and #owner <= 16384 and owner or '' -- a key that isn't a hash has none
end
return owners
