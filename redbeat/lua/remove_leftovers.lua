-- remove_leftovers: remove what is kept for entries whose hashes are gone.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] statics    set of the names of entries that came from beat_schedule
-- KEYS[3..] entries  the entries' keys, and after them
-- KEYS[..] beside    two for each entry: its history, and its runs that were sent by hand
-- ARGV[1] count      how many entries there are
-- ARGV[2..] two for each entry:
--   member           as it stands in the schedule
--   name             as it stands in the statics
--
-- Returns how many members, names and keys were removed; of an entry that is there by now none are
local schedule, statics = KEYS[1], KEYS[2]
local count = tonumber(ARGV[1])

local removed = 0
for i = 3, 2 + count do
  local key, at = KEYS[i], 2 + (i - 3) * 2
  local member, name = ARGV[at], ARGV[at + 1]
  if redis.call('EXISTS', key) == 0 then
    local history, backfilled = KEYS[count + at + 1], KEYS[count + at + 2]
    removed = removed + redis.call('ZREM', schedule, member) + redis.call('SREM', statics, name)
    removed = removed + redis.call('DEL', history, backfilled)
  end
end
return removed
