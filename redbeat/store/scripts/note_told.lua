-- note_told: remember up to which event was told, if it is still the caller who tells.
--
-- Uses check_layout
-- KEYS events_read  the id of the last event that was told of, who tells, and until when
-- ARGV teller       the caller
-- ARGV before       the id that was there when the caller has read
-- ARGV last         the id of the last event that was told of by now
-- ARGV life_ms      how long it is remembered, milliseconds
--
-- Returns 1; 0: another beat tells by now, and nothing was written
local id, other = string.match(redis.call('GET', events_read) or '', '^(%d+%-%d+) (%S+) %S+$')
if id ~= before or other ~= teller then return 0 end
redis.call('SET', events_read, last, 'PX', life_ms)
return 1
