-- drop_members: remove members of the schedule that have no entry.
--
-- Uses check_layout
-- KEYS schedule   zset of entry keys, scored by due time
-- KEYS entries[]  the entries' keys
-- ARGV members    of each entry the member of the schedule: its key or its bare name
--
-- Returns a list: for each entry 1 when that was done, 0 when it has changed meanwhile and was left alone
local results = {}
for i, key in ipairs(entries) do
  results[i] = redis.call('EXISTS', key) == 0 and redis.call('ZREM', schedule, members[i]) or 0
end
return results
