-- read_calendars: calendars as they stand, those that the caller doesn't have already.
--
-- KEYS[1..] calendars  the calendars' keys
-- ARGV[1..] one for each calendar:
--   known              the digest of what the caller has; 'none' when it has nothing, '' when it wants no digest
--
-- Returns for each calendar its digest ('' where none is wanted) and its fields, digest, day, label, day, label
-- ...; the digest alone where it is the known one; or what else its key holds: a type, 'none' where there is no
-- such key
local calendars = {}
for i = 1, #KEYS do
  local key, at = KEYS[i], 1 + (i - 1) * 1
  local known = ARGV[at]
  local kind = redis.call('TYPE', key).ok
  if kind == 'hash' then
    local fields, digest = redis.call('HGETALL', key), ''
    if known ~= '' then
      digest = redis.sha1hex(#fields .. '\0' .. table.concat(fields, '\0'))
      if digest == known then fields = {} end
    end
    table.insert(fields, 1, digest)
    calendars[i] = fields
  else
    calendars[i] = kind
  end
end
return calendars
