-- note_told: remember up to which event was told, if it is still the caller who tells.
--
-- Uses check_layout, clock
-- KEYS events_read  the id of the last event that was told of, who tells, and until when
-- ARGV teller       the caller
-- ARGV before       the id that was there when the caller has read, or has noted last
-- ARGV last         the id of the last event that was told of by now
-- ARGV claim_ms     for how long nobody else goes on, milliseconds; 0: the caller has told all that it has read
-- ARGV life_ms      how long it is remembered, milliseconds
--
-- Returns 1; 0: another beat tells by now, and nothing was written
local id, other = string.match(redis.call('GET', events_read) or '', '^(%d+%-%d+) (%S+) %S+$')
if id ~= before or other ~= teller then return 0 end
local value = last
if claim_ms > 0 then
  value = string.format('%s %s %.3f', last, teller, tonumber(now) + claim_ms / 1000)
end
redis.call('SET', events_read, value, 'PX', life_ms)
return 1
