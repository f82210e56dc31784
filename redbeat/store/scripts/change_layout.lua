-- change_layout: begin to move entries to another layout, or note how far that is, if the layout is the one that the caller
-- has read.
--
-- KEYS[1] layout    hash: into how many shards the schedule is divided, and how often that has been changed
-- ARGV[1] read      the generation that the caller has read, '' for none
-- ARGV[2] before    the state that the caller has read, '' for none
-- ARGV[3] generation  the new one
-- ARGV[4] shards    how many there are, 0 for none
-- ARGV[5] former    how many there were, 0 for none
-- ARGV[6] state     'moving': entries are on their way; 'settling': all have arrived, and what is kept for no entry is on its
--                   way; '': nothing is
-- ARGV[7] swept_seconds  for how long what is written to former places is moved on
--
-- Returns 1; 0: the layout is another one by now, and nothing was written
local layout = KEYS[1]
local read, before, generation, shards, former = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local state, swept_seconds = ARGV[6], ARGV[7]

local found = redis.call('HMGET', layout, 'generation', 'state')
if (found[1] or '') ~= read or (found[2] or '') ~= before then return 0 end
redis.call('HSET', layout, 'generation', generation, 'shards', shards, 'former', former)
if state == '' then
  redis.call('HDEL', layout, 'state')
else
  redis.call('HSET', layout, 'state', state)
end
if state == 'moving' then
  redis.call('HDEL', layout, 'swept_until')
else
  redis.call('HSET', layout, 'swept_until', redis.call('TIME')[1] + swept_seconds)
end
return 1
