-- read_owners: from whose files entries come.
--
-- KEYS[1..] entries  the entries' keys
--
-- Returns the owner of each, '' for nobody: it was made in another way, or isn't there. What is too long to be a
-- name is nobody's, too.
local owners = {}
for i = 1, #KEYS do
  local owner = redis.pcall('HGET', KEYS[i], 'owner')
  owners[i] = type(owner) == 'string' and #owner <= 16384 and owner or '' -- a key that is no hash is nobody's
end
return owners
