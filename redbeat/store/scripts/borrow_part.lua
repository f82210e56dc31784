-- borrow_part: become the one who moves entries of a part for a while, unless somebody else is.
--
-- KEYS[1] mover   token of who moves entries out of this part, and into it
-- ARGV[1] token   the caller's
-- ARGV[2] lease_ms  for how long, milliseconds; 0: give it back
--
-- Returns 1; 0: somebody else moves them
local mover = KEYS[1]
local token, lease_ms = ARGV[1], tonumber(ARGV[2])

local holder = redis.call('GET', mover)
if holder and holder ~= token then return 0 end
if lease_ms == 0 then
  redis.call('DEL', mover)
else
  redis.call('SET', mover, token, 'PX', lease_ms)
end
return 1
