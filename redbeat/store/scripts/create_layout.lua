-- create_layout: note into how many shards a schedule is divided that has no entries yet, and no layout.
--
-- KEYS layout      hash: into how many shards the schedule is divided, and how often that has been changed
-- KEYS generation  string: in which layout the part without shards may be written
-- KEYS schedule    zset of entry keys in the part without shards
-- KEYS later       zset of the keys of stored messages' entries in it
-- KEYS downgraded  hash: key of each entry that was taken out of it for celery-redbeat 2.x, to its score
-- ARGV shards      how many there are from now on, 1 or more
--
-- Returns 'created'; 'known': there is a layout; 'undivided': there are entries without shards. Only 'created' was written.
if redis.call('EXISTS', layout) == 1 then return 'known' end
if redis.call('EXISTS', schedule, later, downgraded) > 0 then return 'undivided' end
redis.call('HSET', layout, 'shards', shards, 'generation', 1)
redis.call('SET', generation, '1 ' .. shards)
return 'created'
