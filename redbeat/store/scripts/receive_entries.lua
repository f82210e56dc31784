-- receive_entries: write entries to the part of the schedule where they belong, with all that is kept for them, once.
--
-- Uses check_layout, clock, move_keys, try_rights, merge_kept, receive_entry
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
-- ARGV kinds          how keys begin that are moved, by their kinds: key; hidden: while they are hidden; unmoved: what can't be
--                     merged. The name of an entry follows, or ''
-- ARGV items          of each entry its name, its record as hide_entries has made it, and kept: of each key that is kept for
--                     it its kind, the rest of the key, and when it ends
-- BYTES dumps         what these keys hold, one after the other, as hide_entries returns it
-- What somebody has written here already is merged with what arrives, as merge_values says. What can't be merged is kept
-- under a key of its own. An entry that can't be written wholly isn't written at all, nor is it by another call for this move.
--
-- Returns {written, refused}
--   written  of each entry 1, 0 when it was written before, or the error for which it couldn't be: 'before' when it
--            couldn't be before
--   refused  keys of what couldn't be merged
check_mover(mover, token)
for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do redis.call('ZCARD', key) end
for _, key in ipairs({statics, static_owners}) do redis.call('SCARD', key) end
for _, key in ipairs({downgraded, arrived}) do redis.call('HLEN', key) end

local before, failed_before, soon_seconds = redis.call('HGET', arrived, move), {}, 5
for _, name in ipairs(before and cjson.decode(before) or {}) do failed_before[name] = true end
local zone = {
  schedule = schedule, later = later, statics = statics, owners = static_owners, away = downgraded, deadlines = deadlines,
  expected = expected, streaks = streaks, arriving = arriving, kinds = kinds, refused = {}, is_soon = false,
  last = time[1] + soon_seconds, now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000),
}
local written, failed, next_dump = {}, {}, 1
for number, item in ipairs(items) do
  local name, record, kept = item.name, item.record, item.kept
  for _, one in ipairs(kept) do one[4], next_dump = dumps[next_dump], next_dump + 1 end
  if before then
    written[number] = failed_before[name] and 'before' or 0
  else
    local is_written, problem = pcall(receive_entry, zone, name, cjson.decode(record), kept)
    written[number] = is_written and 1 or (type(problem) == 'table' and problem.err or tostring(problem))
    if not is_written then
      for _, staged in ipairs(zone.staged) do redis.call('UNLINK', staged) end
      failed[#failed + 1] = name
    end
  end
end
if not before then
  redis.call('HDEL', arrived, move)  -- first, as this needs no memory, and what comes after it isn't refused for want of it
  redis.call('HSET', arrived, move, cjson.encode(failed))
end
-- without the right to publish it is noticed a little later
if zone.is_soon then redis.pcall('PUBLISH', wake, 'moved') end
return {written, zone.refused}
