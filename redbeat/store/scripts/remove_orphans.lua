-- remove_orphans: remove what is kept for entries whose hashes are gone.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] statics    set of the names of entries that came from beat_schedule
-- KEYS[3] owners     set of 'owner, tab, name': whose beat_schedule has an entry
-- KEYS[4] away       hash of the keys of entries that were taken out for celery-redbeat 2.x
-- KEYS[5..] entries  the entries' keys, and after them
-- KEYS[..] beside    three for each entry: its history, its runs that were sent by hand, and its failures in a row
-- ARGV[1] count      how many entries there are
-- ARGV[2..] two for each entry:
--   member           the member of the schedule: its key or its bare name
--   name             its name among the statics
-- ARGV[..] two for each member of owners that has an entry's name:
--   entry            which of KEYS is the entry's
--   owned            the member
--
-- Returns how many members, names and keys were removed; for an entry that exists by now nothing is
local schedule, statics, owners, away = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local count = tonumber(ARGV[1])

local is_owned = {}
for place = 2 + count * 2, #ARGV, 2 do
  local entry, owned = tonumber(ARGV[place]), ARGV[place + 1]
  if redis.call('EXISTS', KEYS[entry]) == 0 and redis.call('SREM', owners, owned) == 1 then
    is_owned[entry] = true
  end
end

local removed = 0
for i = 5, 4 + count do
  local key, at, beside = KEYS[i], 2 + (i - 5) * 2, 5 + count + 3 * (i - 5)
  local member, name = ARGV[at], ARGV[at + 1]
  if redis.call('EXISTS', key) == 0 then
    local history, backfilled, failing = KEYS[beside], KEYS[beside + 1], KEYS[beside + 2]
    if redis.call('SREM', statics, name) == 1 or is_owned[i] then removed = removed + 1 end
    removed = removed + redis.call('ZREM', schedule, member)
    if redis.call('TYPE', away).ok == 'hash' then removed = removed + redis.call('HDEL', away, key) end
    -- a key of another type isn't RedBeat's
    if redis.call('TYPE', history).ok == 'list' then removed = removed + redis.call('DEL', history) end
    if redis.call('TYPE', backfilled).ok == 'set' then removed = removed + redis.call('DEL', backfilled) end
    if redis.call('TYPE', failing).ok == 'string' then removed = removed + redis.call('DEL', failing) end
  end
end
return removed
