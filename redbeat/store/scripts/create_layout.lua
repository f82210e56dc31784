-- create_layout: note into how many shards a schedule is divided that has no entries yet, and no layout.
--
-- KEYS[1] layout      hash: into how many shards the schedule is divided, and how often that has been changed
-- KEYS[2] generation  string: in which layout the part without shards may be written
-- KEYS[3] schedule    zset of entry keys in the part without shards
-- KEYS[4] later       zset of the keys of stored messages' entries in it
-- KEYS[5] away        hash: key of each entry that was taken out of it for celery-redbeat 2.x, to its score
-- ARGV[1] shards      how many there are from now on, 1 or more
-- ARGV[2] after       the latest generation that a part knows of, as the layout may have been lost; 0: none does
--
-- Returns 'created'; 'known': there is a layout; 'undivided': there are entries without shards. Only 'created' was written.
local layout, generation, schedule, later, away = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local shards, after = ARGV[1], tonumber(ARGV[2])

if redis.call('EXISTS', layout) == 1 then return 'known' end
if redis.call('EXISTS', schedule, later, away) > 0 then return 'undivided' end
local known = tonumber(string.match(redis.call('GET', generation) or '', '^%d+') or 0)
local number = string.format('%.0f', math.max(known, after) + 1)
redis.call('HSET', layout, 'shards', shards, 'generation', number)
redis.call('SET', generation, number .. ' ' .. shards)
return 'created'
