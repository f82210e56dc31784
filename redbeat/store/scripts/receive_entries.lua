-- receive_entries: write entries to the part of the schedule where they belong, with all that is kept for them, once.
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
-- KEYS[10] arrived   hash: id of each move that was written here, to a JSON array of the names that couldn't be
-- KEYS[11] arriving  what arrives stands for a moment under names that begin so
-- ARGV[1] token      the caller's
-- ARGV[2] move       the id of the move
-- ARGV[3] wake       channel on which it is announced if beat may have to look soon
-- ARGV[4..] kinds    as take_kinds takes them; after them how many entries there are, and of each its name, its record as
--                    hide_entries has made it, and what is kept for it, four for each, as hide_entries returns them
-- What somebody has written here already is merged with what arrives, as merge_values says. What can't be merged is kept
-- under a key of its own. An entry that can't be written wholly isn't written at all, nor is it by another call for this move.
--
-- Returns {written, refused}
--   written  of each entry 1, 0 when it was written before, or the error for which it couldn't be: 'before' when it
--            couldn't be before
--   refused  keys of what couldn't be merged
local schedule, later, statics, owners, away = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deadlines, expected, streaks, mover, arrived, arriving = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local token, move, wake = ARGV[1], ARGV[2], ARGV[3]

check_mover(mover, token)
for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do redis.call('ZCARD', key) end
for _, key in ipairs({statics, owners}) do redis.call('SCARD', key) end
for _, key in ipairs({away, arrived}) do redis.call('HLEN', key) end

local kinds, place = take_kinds(4)
local before, failed_before, soon_seconds = redis.call('HGET', arrived, move), {}, 5
for _, name in ipairs(before and cjson.decode(before) or {}) do failed_before[name] = true end
local time = redis.call('TIME')
local zone = {
  schedule = schedule, later = later, statics = statics, owners = owners, away = away, deadlines = deadlines,
  expected = expected, streaks = streaks, arriving = arriving, kinds = kinds, refused = {}, is_soon = false,
  last = time[1] + soon_seconds, now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000),
}
local written, failed, count = {}, {}, tonumber(ARGV[place])
place = place + 1
for number = 1, count do
  local name, record, kept = ARGV[place], ARGV[place + 1], {}
  kept, place = take_list(place + 2, 4)
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
