-- raise_generation: let a part of the schedule be written by those who know the layout; a later generation stays, and so
-- does a part's end.
--
-- KEYS generation  string: in which layout the part may be written
-- ARGV guard       what generation holds from now on: the number of the layout, a space, and how many shards it has
local found = redis.call('GET', generation) or ''
local known, wanted = tonumber(string.match(found, '^%d+') or 0), tonumber(string.match(guard, '^%d+') or 0)
-- another number of shards in the same generation was written by hand; a part that has ended has none
local has_ended = known == wanted and not string.find(found, '^%d+ %d')
if known > wanted or has_ended or found == guard then return end
redis.call('SET', generation, guard)
