-- drop_members: remove members of the schedule that have no entry.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2..] entries  the entries' keys
-- ARGV[1..] one for each entry:
--   member           the member of the schedule: its key or its bare name
--
-- Returns a list: for each entry 1 when that was done, 0 when it has changed meanwhile and was left alone
local schedule = KEYS[1]

local results = {}
for i = 2, #KEYS do
  local key, at = KEYS[i], 1 + (i - 2) * 1
  local member = ARGV[at]
  results[i - 1] = redis.call('EXISTS', key) == 0 and redis.call('ZREM', schedule, member) or 0
end
return results
