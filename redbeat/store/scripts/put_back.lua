-- put_back: put entries that a part has hidden back to where they were, as they couldn't be written elsewhere.
--
-- Uses check_layout, clock, move_keys, merge_kept, receive_entry
-- KEYS schedule       zset of entry keys, scored by due time
-- KEYS later          zset of the keys of stored messages' entries
-- KEYS statics        set of the names of entries that came from beat_schedule
-- KEYS static_owners  set: whose beat_schedule has an entry: the owner, a tab, and its name
-- KEYS downgraded     hash: key of each entry that was taken out for celery-redbeat 2.x, to its score
-- KEYS deadlines      zset of when beat must look at each run in progress
-- KEYS expected       zset of the keys of entries' runs in progress, by when one must have succeeded
-- KEYS streaks        zset likewise of the entries whose last run has failed
-- KEYS mover          token of who moves entries out of this part, and into it
-- KEYS moving         hash: name of each hidden entry, to JSON: what it was in this part
-- KEYS left           set of the names of those that have left this part since the layout was changed
-- ARGV token          the caller's
-- ARGV move           the id of the move
-- ARGV wake           channel on which it is announced if beat may have to look soon
-- ARGV kinds          how keys begin that are moved, by their kinds: key; hidden: while they are hidden; unmoved: what can't be
--                     merged. The name of an entry follows, or ''
-- ARGV names          of the entries
-- The keys that are renamed are made of what kinds says and what the records in moving say. What somebody has written there
-- meanwhile is merged, as merge_values says.
--
-- Returns {count, refused}
--   count    how many were put back
--   refused  keys of what couldn't be merged
check_mover(mover, token)
local count, soon_seconds = 0, 5
local zone = {
  schedule = schedule, later = later, statics = statics, owners = static_owners, away = downgraded, deadlines = deadlines,
  expected = expected, streaks = streaks, kinds = kinds, refused = {}, is_soon = false,
  last = time[1] + soon_seconds,
}

local function unhide(kind, rest)
  local hidden, home = kinds[kind].hidden .. rest, kinds[kind].key .. rest
  local is_there = redis.call('EXISTS', hidden) == 1  -- else its time is over
  if is_there and redis.call('EXISTS', home) == 0 then
    redis.call('RENAME', hidden, home)
  elseif is_there and merge_values(kind, home, hidden, false) then
    local unmoved = kinds[kind].unmoved .. rest
    redis.call('RENAME', hidden, unmoved)
    zone.refused[#zone.refused + 1] = unmoved
  else
    redis.call('UNLINK', hidden)
  end
end

for _, name in ipairs(names) do
  local text = redis.call('HGET', moving, name)
  local record = text and cjson.decode(text)
  if record and record.id == move then
    -- first, as this needs no memory, and what comes after it isn't refused for want of it
    redis.call('HDEL', moving, name)
    if record.foreign ~= 1 then redis.call('SREM', left, name) end
    record.foreign = nil  -- what somebody has written here meanwhile is newer
    local definition = redis.pcall('HGET', kinds.entry.key .. name, 'definition')
    for _, kept in ipairs(record.kept) do unhide(kept[1], kept[2]) end
    place_entry(zone, name, record, definition)
    count = count + 1
  end
end
-- without the right to publish it is noticed a little later
if zone.is_soon then redis.pcall('PUBLISH', wake, 'moved') end
return {count, zone.refused}
