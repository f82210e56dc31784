-- read_calendars: calendars as they stand.
--
-- KEYS[1..] calendars  the calendars' keys
--
-- Returns for each calendar its fields, day, label, day, label ..., or what else its key holds: a type, 'none'
-- where there is no such key
local calendars = {}
for i = 1, #KEYS do
  local kind = redis.call('TYPE', KEYS[i]).ok
  calendars[i] = kind == 'hash' and redis.call('HGETALL', KEYS[i]) or kind
end
return calendars
