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
-- ARGV wake           channel on which it is announced if beat may have to look soon
-- ARGV prefix         the part's
-- ARGV hidden         how keys begin while they are hidden; what followed the prefix comes next
-- ARGV unmoved        likewise what can't be merged
-- ARGV running_names  how the keys of runs in progress begin; the entry's name comes next
-- ARGV owner_names    how the keys of an owner's names begin; the owner comes next
-- ARGV names          of the entries
-- ARGV returned       of those that are put back; the others were written to another part
-- The keys that are renamed or removed are made of these beginnings and of what the records in moving say. What somebody has
-- written there meanwhile is merged, as merge_values says.
--
-- Returns the keys of what couldn't be merged

local refused = {}
local function put_back(kind, rest)
  local from, home = hidden .. rest, prefix .. rest
  local is_there = redis.call('EXISTS', from) == 1  -- else its time is over
  if is_there and redis.call('EXISTS', home) == 0 then
    redis.call('RENAME', from, home)
  elseif is_there and merge_values(kind, home, from, false) then
    redis.call('RENAME', from, unmoved .. rest)
    refused[#refused + 1] = unmoved .. rest
  else
    redis.call('UNLINK', from)
  end
end

for _, name in ipairs(names) do
  local text = redis.call('HGET', moving, name)
  local record = text and cjson.decode(text)
  if record and record.id == move then
    -- first, as this needs no memory, and what comes after it isn't refused for want of it
    redis.call('HDEL', moving, name)
    if returned[name] then
      local definition = redis.pcall('HGET', prefix .. name, 'definition')
      for _, one in ipairs(record.kept) do put_back(one[1], one[2]) end
      if not record.is_foreign then redis.call('SREM', left, name) end
      record.is_foreign = false  -- what somebody has written here meanwhile is newer
      place_entry(name, record, definition)
    else
      for _, one in ipairs(record.kept) do redis.call('UNLINK', hidden .. one[2]) end
    end
  end
end
if is_soon then redis.pcall('PUBLISH', wake, 'moved') end
return refused
