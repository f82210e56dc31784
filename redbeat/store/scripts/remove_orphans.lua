-- remove_orphans: remove what is kept for entries whose hashes are gone.
--
-- Uses check_layout
-- KEYS schedule       zset of entry keys, scored by due time
-- KEYS statics        set of the names of entries that came from beat_schedule
-- KEYS static_owners  set of 'owner, tab, name': whose beat_schedule has an entry
-- KEYS downgraded     hash of the keys of entries that were taken out for celery-redbeat 2.x
-- KEYS entries[]      the entries' keys
-- KEYS beside[]       three for each entry: its history, its runs that were sent by hand, and its failures in a row
-- ARGV rows           of each entry:
--   member       the member of the schedule: its key or its bare name
--   name         its name among the statics
--   pairs        the members of static_owners that have its name
--
-- Returns how many members, names and keys were removed; for an entry that exists by now nothing is
local removed = 0
for i, key in ipairs(entries) do
  local row = rows[i]
  if redis.call('EXISTS', key) == 0 then
    local history, backfilled, failing = beside[3 * i - 2], beside[3 * i - 1], beside[3 * i]
    local is_static = redis.call('SREM', statics, row.name) == 1
    for _, pair in ipairs(row.pairs) do is_static = redis.call('SREM', static_owners, pair) == 1 or is_static end
    if is_static then removed = removed + 1 end
    removed = removed + redis.call('ZREM', schedule, row.member)
    if redis.call('TYPE', downgraded).ok == 'hash' then removed = removed + redis.call('HDEL', downgraded, key) end
    -- a key of another type isn't RedBeat's
    if redis.call('TYPE', history).ok == 'list' then removed = removed + redis.call('DEL', history) end
    if redis.call('TYPE', backfilled).ok == 'set' then removed = removed + redis.call('DEL', backfilled) end
    if redis.call('TYPE', failing).ok == 'string' then removed = removed + redis.call('DEL', failing) end
  end
end
return removed
