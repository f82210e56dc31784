-- raise_generation: let a part of the schedule be written by those who know the layout; a later generation stays, and so
-- does a part's end. Or open the part, also one that has ended, and say who moves its entries.
--
-- KEYS generation  string: in which layout the part may be written
-- KEYS mover       token of who moves entries out of this part, and into it
-- ARGV guard       what generation holds from now on: the number of the layout, a space, and how many shards it has
-- ARGV token       who moves entries from now on; nil: the part isn't opened, and mover stays as it is
-- ARGV lease_ms    for how long, unless that is renewed, milliseconds
--
-- Returns what generation holds
local found = redis.call('GET', generation) or ''
local known, wanted = tonumber(string.match(found, '^%d+') or 0), tonumber(string.match(guard, '^%d+') or 0)
-- another number of shards in the same generation was written by hand; a part that has ended has none
local has_ended = known == wanted and not string.find(found, '^%d+ %d')
if known > wanted or (has_ended and not token) then return found end
if found ~= guard then redis.call('SET', generation, guard) end
if token then redis.call('SET', mover, token, 'PX', lease_ms) end
return guard
