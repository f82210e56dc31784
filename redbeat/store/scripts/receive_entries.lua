-- receive_entries: write entries to the part of the schedule where they belong, with all that is kept for them, once.
--
-- Uses check_layout, check_mover, clock, move_keys, try_rights, set_field, merge_kept, place_entry
-- KEYS schedule       zset of entry keys, scored by due time
-- KEYS later          zset of the keys of stored messages' entries
-- KEYS statics        set of the names of entries that came from beat_schedule
-- KEYS static_owners  set: whose beat_schedule has an entry: the owner, a tab, and its name
-- KEYS downgraded     hash: key of each entry that was taken out for celery-redbeat 2.x, to its score
-- KEYS deadlines      zset of when beat must look at each run in progress
-- KEYS expected       zset of the keys of entries' runs in progress, by when one must have succeeded
-- KEYS streaks        zset likewise of the entries whose last run has failed
-- KEYS mover          token of who moves entries out of this part, and into it
-- KEYS arrived        hash: id of each move that was written here, to a JSON array of the names that couldn't be
-- KEYS arriving       what arrives stands for a moment under names that begin so
-- ARGV token          the caller's
-- ARGV move           the id of the move
-- ARGV wake           channel on which it is announced if beat may have to look soon
-- ARGV prefix         the part's
-- ARGV unmoved        how keys begin that can't be merged; what followed the prefix comes next
-- ARGV running_names  how the keys of runs in progress begin; the entry's name comes next
-- ARGV owner_names    how the keys of an owner's names begin; the owner comes next
-- ARGV names          of the entries
-- BYTES rows          of each entry its record as hide_entries has made it, and a DUMP for each key in that; nothing: of the
--                     move nothing is written, nor will be: for who hasn't got the reply to it
-- What somebody has written here already is merged with what arrives, as merge_values says. What can't be merged is kept
-- under a key of its own. An entry that can't be written wholly isn't written at all, nor is it by another call for this move.
--
-- Returns {written, refused}
--   written  of each entry 1, 0 when it was written before, or the error for which it couldn't be: 'before' when it
--            couldn't be before, or is cancelled
--   refused  keys of what couldn't be merged

local is_cancelled = #rows == 0
if not is_cancelled then
  for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do redis.call('ZCARD', key) end
  for _, key in ipairs({statics, static_owners}) do redis.call('SCARD', key) end
  redis.call('HLEN', downgraded)
end

local staged, unmerged, refused, is_allowed = {}, {}, {}, false

-- nil: its time is over
local function stage(payload, at)
  if payload == '' then return nil end
  local key = arriving .. ':' .. #staged + 1
  redis.call('RESTORE', key, at, payload, 'REPLACE', 'ABSTTL')
  staged[#staged + 1] = key
  return (at == '0' or redis.call('EXISTS', key) == 1) and key or nil
end

-- all of it stands under names below arriving at first, also a copy of what it is merged with, as what a failing script has
-- written stays written. Returns what is to be renamed, and to what, in pairs.
local function prepare_kept(kept, is_foreign)
  local by_kind, ready = {}, {}
  local function finish(from, to)
    if from then ready[#ready + 1] = {from, to} end
  end
  for _, one in ipairs(kept) do by_kind[one[1]] = one end
  local has_events, told = by_kind.events and redis.call('EXISTS', prefix .. by_kind.events[2]) == 1, by_kind.events_read
  for _, one in ipairs(kept) do
    local kind, home = one[1], prefix .. one[2]
    local is_told_with = has_events and kind == 'events_read'  -- it is about the other stream
    local here = not is_told_with and stage(one[4], one[3])
    local merged = here and redis.call('EXISTS', home) == 1 and stage(redis.call('DUMP', home), ends_at(home))
    if has_events and kind == 'events' then
      if told then finish(merge_events(merged, prefix .. told[2], here, stage(told[4], told[3])), prefix .. told[2]) end
      finish(merged, home)
    elseif here and not merged then
      finish(here, home)
    elseif merged and merge_values(kind, merged, here, is_foreign) then
      finish(here, unmoved .. one[2])
      unmerged[#unmerged + 1] = unmoved .. one[2]
    elseif merged then
      finish(merged, home)
    end
  end
  return ready
end

-- write one entry, with all that is kept for it, all of it or nothing
local function receive_entry(name, record)
  staged, unmerged = {}, {}
  if not is_allowed then try_rights(arriving) end
  is_allowed = true
  if record.owned then redis.call('SCARD', owner_names .. record.owned) end
  local definition = redis.pcall('HGET', prefix .. name, 'definition')
  for _, one in ipairs(prepare_kept(record.kept, record.is_foreign)) do redis.call('RENAME', one[1], one[2]) end
  for _, key in ipairs(staged) do redis.call('UNLINK', key) end
  for _, key in ipairs(unmerged) do refused[#refused + 1] = key end
  place_entry(name, record, definition)
end

local before, failed_before = redis.call('HGET', arrived, move), {}
for _, name in ipairs(before and cjson.decode(before) or {}) do failed_before[name] = true end
local written, failed, next_row = {}, {}, 1
for number, name in ipairs(names) do
  local record = not is_cancelled and cjson.decode(rows[next_row])
  for place, one in ipairs(record and record.kept or {}) do one[4] = rows[next_row + place] end
  if record then next_row = next_row + 1 + #record.kept end
  if before then
    written[number] = failed_before[name] and 'before' or 0
  else
    local is_written, problem = false, 'before'
    if record then is_written, problem = pcall(receive_entry, name, record) end
    written[number] = is_written and 1 or (type(problem) == 'table' and problem.err or tostring(problem))
    if not is_written then
      for _, key in ipairs(staged) do redis.call('UNLINK', key) end
      failed[#failed + 1] = name
    end
  end
end
if not before then
  redis.call('HDEL', arrived, move)  -- first, as this needs no memory, and what comes after it isn't refused for want of it
  redis.call('HSET', arrived, move, cjson.encode(failed))
end
-- without the right to publish it is noticed a little later
if is_soon then redis.pcall('PUBLISH', wake, 'moved') end
return {written, refused}
