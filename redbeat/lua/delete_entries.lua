-- delete_entries: remove entries from the schedule, hash and all, and tell the beat.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2..] entries  the entries' keys
-- ARGV[1] wake       channel that is told
--
-- Returns how many keys there were
local schedule, wake = KEYS[1], ARGV[1]

local deleted = 0
for i = 2, #KEYS do
  redis.call('ZREM', schedule, KEYS[i])
  deleted = deleted + redis.call('DEL', KEYS[i])
end
-- a wake-up only makes it quicker: who may not publish may still delete
redis.pcall('PUBLISH', wake, 'deleted')
return deleted
