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
-- KEYS[10] moving    hash: name of each entry that this part itself has hidden
-- KEYS[11] arrived   hash: id of each move that has been written here, to the names that couldn't be, with NULs between
-- KEYS[12] arriving  what is merged stands here for a moment
-- ARGV[1] token      the caller's
-- ARGV[2] move       the id of the move
-- ARGV[3] wake       channel on which it is announced if beat may have to look soon
-- ARGV[4] is_back    1: this part has hidden them, and they go nowhere: what is hidden is dropped in the same step
-- ARGV[5..] kinds    as take_kinds takes them; after them how many entries there are, and of each its name, its record as
--                    hide_entries has made it, and what is kept for it, four for each, as hide_entries returns them
-- What somebody has written here already is merged with what arrives, as merge_kept says. What can't be merged is kept
-- under a key of its own.
--
-- Returns {written, refused}
--   written  of each entry 1, 0 when it was written before, or the error for which it couldn't be
--   refused  keys of what couldn't be merged
local schedule, later, statics, owners, away = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deadlines, expected, streaks, mover = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local moving, arrived, arriving = KEYS[10], KEYS[11], KEYS[12]
local token, move, wake, is_back = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

check_mover(mover, token)
for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do redis.call('ZCARD', key) end
for _, key in ipairs({statics, owners}) do redis.call('SCARD', key) end
redis.call('HLEN', away)

local kinds, place = take_kinds(5)
local before, failed_before, soon_seconds = is_back ~= '1' and redis.call('HGET', arrived, move), {}, 5
for name in string.gmatch((before or '') .. '\0', '(%Z*)%z') do failed_before[name] = true end
local zone = {
  schedule = schedule, later = later, statics = statics, owners = owners, away = away, deadlines = deadlines,
  expected = expected, streaks = streaks, arriving = arriving, kinds = kinds, refused = {}, is_soon = false,
  last = redis.call('TIME')[1] + soon_seconds,
}
local written, failed, count = {}, {}, tonumber(ARGV[place])
place = place + 1
for number = 1, count do
  local name, record, kept = ARGV[place], ARGV[place + 1], {}
  kept, place = take_list(place + 2, 4)
  if before and not failed_before[name] then
    written[number] = 0
  else
    local is_written, problem = pcall(receive_entry, zone, name, cjson.decode(record), kept)
    written[number] = is_written and 1 or (type(problem) == 'table' and problem.err or tostring(problem))
    if not is_written then
      failed[#failed + 1] = name
    elseif is_back == '1' then
      for _, one in ipairs(kept) do redis.call('UNLINK', kinds[one[1]].hidden .. one[2]) end
      redis.call('HDEL', moving, name)
    end
  end
end
if is_back ~= '1' then redis.call('HSET', arrived, move, table.concat(failed, '\0')) end
-- without the right to publish it is noticed a little later
if zone.is_soon then redis.pcall('PUBLISH', wake, 'moved') end
return {written, zone.refused}
