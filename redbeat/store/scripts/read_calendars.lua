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
  calendars[i] = redis.call('TYPE', key).ok
  if calendars[i] == 'hash' then
    local fields = redis.call('HGETALL', key)
    local digest = known[i] ~= '' and sha1hex(#fields .. '\0' .. table.concat(fields, '\0')) or ''
    calendars[i] = digest ~= '' and digest == known[i] and {} or fields
    table.insert(calendars[i], 1, digest)
  end
end
return calendars
