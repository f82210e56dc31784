-- open_part: let a part of the schedule be written by those who know the layout, and its entries be moved by one process.
--
-- KEYS generation  string: in which layout the part may be written
-- KEYS mover       token of who moves entries out of this part, and into it
-- ARGV text        what generation holds from now on: the number of the layout, a space, and how many shards it has
-- ARGV token       who moves entries from now on, '' for nobody: then it is removed
-- A later generation stays.
--
-- Returns what generation holds
local found = redis.call('GET', generation) or ''
local function number_of(guard) return tonumber(string.match(guard, '^%d+') or 0) end
if number_of(found) > number_of(text) then return found end
redis.call('SET', generation, text)
if token ~= '' then
  redis.call('SET', mover, token)
else
  redis.call('DEL', mover)
end
return text
