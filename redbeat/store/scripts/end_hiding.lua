-- end_hiding: remove what a part has hidden of entries that were written to another part, or put it back to where it
-- was, as it couldn't be written there.
--
-- Uses check_layout, check_mover, clock, move_keys, set_field, merge_kept, place_entry
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
-- ARGV has_arrived    they were written to another part
-- ARGV wake           channel on which it is announced if beat may have to look soon
-- ARGV kinds          how keys begin that are moved, by their kinds: key; hidden: while they are hidden; unmoved: what can't be
--                     merged. The name of an entry follows, or ''
-- ARGV names          of the entries
-- The keys that are renamed or removed are made of what kinds says and what the records in moving say. What somebody has
-- written there meanwhile is merged, as merge_values says.
--
-- Returns the keys of what couldn't be merged

local refused = {}
local function put_back(hidden, home, kind, unmoved)
  local is_there = redis.call('EXISTS', hidden) == 1  -- else its time is over
  if is_there and redis.call('EXISTS', home) == 0 then
    redis.call('RENAME', hidden, home)
  elseif is_there and merge_values(kind, home, hidden, false) then
    redis.call('RENAME', hidden, unmoved)
    refused[#refused + 1] = unmoved
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
    local definition = redis.pcall('HGET', kinds.entry.key .. name, 'definition')
    for _, one in ipairs(record.kept) do
      local prefix, rest = kinds[one[1]], one[2]
      if has_arrived then
        redis.call('UNLINK', prefix.hidden .. rest)
      else
        put_back(prefix.hidden .. rest, prefix.key .. rest, one[1], prefix.unmoved .. rest)
      end
    end
    if not has_arrived then
      if not record.is_foreign then redis.call('SREM', left, name) end
      record.is_foreign = false  -- what somebody has written here meanwhile is newer
      place_entry(name, record, definition)
    end
  end
end
if is_soon then redis.pcall('PUBLISH', wake, 'moved') end
return refused
