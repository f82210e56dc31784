-- delete_entries: remove entries from the schedule with their hashes, and wake the beat.
--
-- Uses check_layout, hold_lock
-- KEYS schedule   zset of entry keys, scored by due time
-- KEYS entries[]  the entries' keys
-- KEYS beside[]   what is kept beside these entries, and goes with them
-- ARGV wake       channel on which the change is announced
--
-- Returns {status, deleted}
--   status   'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--            holds it (then nothing was removed)
--   deleted  how many keys there were
if status == 'lost' then return {status, 0} end

local deleted = 0
for _, key in ipairs(entries) do
  redis.call('ZREM', schedule, key)
  deleted = deleted + redis.call('DEL', key)
end
for _, key in ipairs(beside) do redis.call('DEL', key) end
redis.pcall('PUBLISH', wake, 'deleted')
return {status, deleted}
