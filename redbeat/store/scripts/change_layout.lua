-- change_layout: begin to move entries to another layout, or note that all of them have arrived, if the layout is the one that
-- the caller has read.
--
-- KEYS[1] layout    hash: into how many shards the schedule is divided, and how often that has been changed
-- ARGV[1] read      the generation that the caller has read, '' for none
-- ARGV[2] state     the state that the caller has read, '' for none
-- ARGV[3] generation  the new one
-- ARGV[4] shards    how many there are, 0 for none
-- ARGV[5] former    how many there were, 0 for none
-- ARGV[6] swept_seconds  '': entries begin to move; else for how long what is written to former places is moved on
--
-- Returns 1; 0: the layout is another one by now, and nothing was written
local layout = KEYS[1]
local read, state, generation, shards, former, swept_seconds = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local found = redis.call('HMGET', layout, 'generation', 'state')
if (found[1] or '') ~= read or (found[2] or '') ~= state then return 0 end
redis.call('HSET', layout, 'generation', generation, 'shards', shards, 'former', former)
if swept_seconds == '' then
  redis.call('HSET', layout, 'state', 'moving')
  redis.call('HDEL', layout, 'swept_until')
else
  redis.call('HDEL', layout, 'state')
  redis.call('HSET', layout, 'swept_until', redis.call('TIME')[1] + swept_seconds)
end
return 1
