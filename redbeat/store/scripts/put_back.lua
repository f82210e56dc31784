-- put_back: put entries that a part has hidden back to where they were, as they couldn't be written elsewhere.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] later      zset of the keys of stored messages' entries
-- KEYS[3] statics    set of the names of entries that came from beat_schedule
-- KEYS[4] owners     set: whose beat_schedule has an entry: the owner, a tab, and its name
-- KEYS[5] away       hash: key of each entry that was taken out for celery-redbeat 2.x, to its score
-- KEYS[6] deadlines  zset of when beat must look at each run in progress
-- KEYS[7] expected   zset of the keys of entries' runs in progress, by when one must have succeeded
-- KEYS[8] streaks    zset likewise of the entries whose last run has failed
-- KEYS[9] mover      token of who moves entries out of this part, and into it
-- KEYS[10] moving    hash: name of each hidden entry, to JSON: what it was in this part
-- KEYS[11] left      set of the names of those that have left this part since the layout was changed
-- ARGV[1] token      the caller's
-- ARGV[2] move       the id of the move
-- ARGV[3] wake       channel on which it is announced if beat may have to look soon
-- ARGV[4..] kinds    as take_kinds takes them; after them how many entries there are, and their names
-- The keys that are renamed are made of what kinds says and what the records in moving say. What somebody has written there
-- meanwhile is merged, as merge_values says.
--
-- Returns {count, refused}
--   count    how many were put back
--   refused  keys of what couldn't be merged
local schedule, later, statics, owners, away = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deadlines, expected, streaks, mover, moving, left = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local token, move, wake = ARGV[1], ARGV[2], ARGV[3]

check_mover(mover, token)
local kinds, place = take_kinds(4)
local names, count, soon_seconds = take_list(place, 1), 0, 5
local zone = {
  schedule = schedule, later = later, statics = statics, owners = owners, away = away, deadlines = deadlines,
  expected = expected, streaks = streaks, kinds = kinds, refused = {}, is_soon = false,
  last = redis.call('TIME')[1] + soon_seconds,
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

for _, one in ipairs(names) do
  local name = one[1]
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
