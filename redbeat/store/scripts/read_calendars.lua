-- read_calendars: return those calendars that the caller doesn't have already.
--
-- Uses entry_texts
-- KEYS keys[]  the calendars' keys
-- ARGV known   of each the digest of the one that the caller has; 'none': it has none; '': it wants no digest
--
-- Returns for each calendar a list: its digest ('' if none is wanted), then day, label, day, label and so on; only the
-- digest if it is the known one; or instead of a list the type of its key, 'none' if there is no key
local calendars = {}
for i, key in ipairs(keys) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'hash' then
    local fields, digest = redis.call('HGETALL', key), ''
    if known[i] ~= '' then
      digest = sha1hex(#fields .. '\0' .. table.concat(fields, '\0'))
      if digest == known[i] then fields = {} end
    end
    table.insert(fields, 1, digest)
    calendars[i] = fields
  else
    calendars[i] = kind
  end
end
return calendars
