-- change_layout: begin to move entries to another layout, or note how far that is, if the layout is the one that the caller
-- has read.
--
-- Uses set_field
-- KEYS layout         hash: into how many shards the schedule is divided, and how often that has been changed
-- ARGV read           the generation that the caller has read, '' for none
-- ARGV before         the state that the caller has read, '' for none
-- ARGV generation     the new one
-- ARGV shards         how many there are; nil: none
-- ARGV former         how many there were; nil: none
-- ARGV state          'moving': entries are on their way; 'settling': all have arrived, and what is kept for no entry is on its
--                     way; '': nothing is
-- ARGV swept_seconds  for how long what is written to former places is moved on
--
-- Returns 1; 0: the layout is another one by now, and nothing was written
local found = redis.call('HMGET', layout, 'generation', 'state')
if (found[1] or '') ~= read or (found[2] or '') ~= before then return 0 end
redis.call('HSET', layout, 'generation', generation, 'shards', shards or 0, 'former', former or 0)
set_field(layout, 'state', state)
set_field(layout, 'swept_until', state == 'moving' and '' or redis.call('TIME')[1] + swept_seconds)
return 1
