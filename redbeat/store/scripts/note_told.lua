-- note_told: remember up to which event was told, if it is still the caller who tells.
--
-- KEYS[1] told      the id of the last event that was told of, who tells, and until when
-- ARGV[1] teller    the caller
-- ARGV[2] before    the id that was there when the caller has read, or has noted last
-- ARGV[3] last      the id of the last event that was told of by now
-- ARGV[4] claim_ms  for how long nobody else goes on, milliseconds; 0: the caller has told all that it has read
-- ARGV[5] life_ms   how long it is remembered, milliseconds
--
-- Returns 1; 0: another beat tells by now, and nothing was written
local told = KEYS[1]
local teller, before, last, claim_ms, life_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

local id, other = string.match(redis.call('GET', told) or '', '^(%d+%-%d+) (%S+) %S+$')
if id ~= before or other ~= teller then return 0 end
local value = last
if claim_ms > 0 then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
  value = string.format('%s %s %.3f', last, teller, now + claim_ms / 1000)
end
redis.call('SET', told, value, 'PX', life_ms)
return 1
