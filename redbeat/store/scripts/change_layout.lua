-- change_layout: begin to move entries to another layout, or note that all have arrived, or write a layout that was lost; if the
-- layout is the one that the caller has read.
--
-- Uses set_field
-- KEYS layout      hash: into how many shards the schedule is divided, and how often that has been changed
-- ARGV read        the generation that the caller has read, '' for none
-- ARGV generation  the new one
-- ARGV shards      how many there are; nil: none
-- ARGV former      how many there were; nil: none
-- ARGV is_moving   entries are on their way
--
-- Returns 1; 0: the layout is another one by now, and nothing was written
if (redis.call('HGET', layout, 'generation') or '') ~= read then return 0 end
redis.call('HSET', layout, 'generation', generation, 'shards', shards or 0, 'former', former or 0)
set_field(layout, 'state', is_moving and 'moving' or '')
return 1
