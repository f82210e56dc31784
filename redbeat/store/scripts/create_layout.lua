-- create_layout: note into how many shards a schedule is divided that has no entries yet, and no layout.
--
-- KEYS layout      hash: into how many shards the schedule is divided, and how often that has been changed
-- KEYS generation  string: in which layout the part without shards may be written
-- KEYS schedule    zset of entry keys in the part without shards
-- KEYS later       zset of the keys of stored messages' entries in it
-- KEYS downgraded  hash: key of each entry that was taken out of it for celery-redbeat 2.x, to its score
-- ARGV shards      how many there are from now on, 1 or more
-- ARGV after       the latest generation that a part knows of, as the layout may have been lost; 0: none does
--
-- Returns 'created'; 'known': there is a layout; 'undivided': there are entries without shards. Only 'created' was written.
if redis.call('EXISTS', layout) == 1 then return 'known' end
if redis.call('EXISTS', schedule, later, downgraded) > 0 then return 'undivided' end
local known = tonumber(string.match(redis.call('GET', generation) or '', '^%d+') or 0)
local number = string.format('%.0f', math.max(known, after) + 1)
redis.call('HSET', layout, 'shards', shards, 'generation', number)
redis.call('SET', generation, number .. ' ' .. shards)
return 'created'
