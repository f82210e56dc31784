-- raise_generation: let a part of the schedule be written by those who know the layout; a later generation stays.
--
-- KEYS[1] generation  string: in which layout the part may be written
-- ARGV[1] guard       what it holds from now on: the number of the layout, a space, and how many shards it has
--
-- Returns what it holds
local generation = KEYS[1]
local guard = ARGV[1]

local found = redis.call('GET', generation) or ''
if tonumber(string.match(found, '^%d+') or 0) >= tonumber(string.match(guard, '^%d+')) then return found end
redis.call('SET', generation, guard)
return guard
