-- borrow_part: become the one who moves entries of a part for a while, unless somebody else is.
--
-- KEYS mover     token of who moves entries out of this part, and into it
-- ARGV token     the caller's
-- ARGV lease_ms  for how long, milliseconds; 0: give it back
-- ARGV instead   token of who has moved them before, and does no longer; '': nobody's
--
-- Returns 1; 0: somebody else moves them
local holder = redis.call('GET', mover)
if holder and holder ~= token and holder ~= instead then return 0 end
if lease_ms == 0 then
  redis.call('DEL', mover)
else
  redis.call('SET', mover, token, 'PX', lease_ms)
end
return 1
