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
-- KEYS[10] arrived   hash: id of each move that has been written here, to the names that couldn't be, with NULs between
-- KEYS[11] moving    hash: name of each entry that this part itself has hidden
-- ARGV[1] prefix     what every entry's key starts with
-- ARGV[2] token      the caller's
-- ARGV[3] move       the id of the move
-- ARGV[4] wake       channel on which it is announced if beat may have to look soon
-- ARGV[5] count      how many entries there are
-- ARGV[6] is_back    1: this part has hidden them, and they go nowhere: what is hidden is dropped in the same step
-- ARGV[7..] items    of each entry its name, its record as hide_entries has made it, how many keys are kept for it, and three
--                    for each of these: the key without the prefix, when it ends in UNIX milliseconds, '0' for never, and its
--                    DUMP
-- What somebody has written here already is merged with what arrives, as merge_kept says. What can't be merged is kept
-- under the prefix, ':unmoved:' and its key's rest.
--
-- Returns {written, refused}
--   written  of each entry 1, 0 when it was written before, or the error for which it couldn't be
--   refused  keys of what couldn't be merged
local schedule, later, statics, owners, away = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deadlines, expected, streaks = KEYS[6], KEYS[7], KEYS[8]
local mover, arrived, moving = KEYS[9], KEYS[10], KEYS[11]
local prefix, token, move, wake, count, is_back = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]

check_mover(mover, token)
for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do redis.call('ZCARD', key) end
redis.call('SCARD', statics)
redis.call('SCARD', owners)
redis.call('HLEN', away)

local before, failed_before = is_back ~= '1' and redis.call('HGET', arrived, move), {}
for name in string.gmatch((before or '') .. '\0', '(%Z*)%z') do failed_before[name] = true end
local last, soon_seconds, is_soon = tonumber(redis.call('TIME')[1]), 5, false
local arriving, refused = prefix .. ':arriving', {}

local function write_kept(kept, is_foreign)
  local by_rest = {}
  for _, one in ipairs(kept) do by_rest[one[1]] = one[3] end
  local has_events = redis.call('EXISTS', prefix .. ':events') == 1
  for _, one in ipairs(kept) do
    local rest, ends_at, payload = one[1], one[2], one[3]
    local home = prefix .. rest
    if has_events and rest == ':events' then
      merge_events(home, prefix .. ':events-read', arriving, payload, by_rest[':events-read'])
    elseif has_events and rest == ':events-read' then
      has_events = true  -- it is about the other stream
    elseif redis.call('EXISTS', home) == 0 then
      redis.call('RESTORE', home, ends_at, payload, 'ABSTTL')
    elseif merge_kept(rest, home, arriving, payload, is_foreign) then
      redis.call('RESTORE', prefix .. ':unmoved:' .. rest, ends_at, payload, 'REPLACE', 'ABSTTL')
      refused[#refused + 1] = prefix .. ':unmoved:' .. rest
    end
  end
end

-- what stands here is newer, unless it is the foreign one; of two times for one definition the earlier counts
local function write_score(zset, member, score, is_foreign, is_same)
  if not score then return end
  local ours = redis.call('ZSCORE', zset, member)
  if ours and not is_foreign then
    local is_ours_first = tonumber(ours) >= 0 and (tonumber(score) < 0 or tonumber(ours) < tonumber(score))
    if not is_same or is_ours_first then score = ours end
  end
  redis.call('ZADD', zset, score, member)
  is_soon = is_soon or (tonumber(score) >= 0 and tonumber(score) <= last + soon_seconds)
end

local function write(name, record, kept)
  local entry, running = prefix .. name, prefix .. ':running:' .. name
  local is_foreign = record.foreign == 1
  local definition = redis.pcall('HGET', entry, 'definition')
  write_kept(kept, is_foreign)
  local is_same = type(definition) == 'string' and definition == redis.call('HGET', entry, 'definition')
  local how = is_foreign and 'CH' or 'NX'
  for _, one in ipairs(record.deadlines) do redis.call('ZADD', deadlines, how, one[2], one[1] .. '\0' .. running) end
  how = is_foreign and 'NX' or 'CH'
  if record.expected then redis.call('ZADD', expected, how, record.expected, running) end
  if record.streak then redis.call('ZADD', streaks, how, record.streak, running) end
  if record.away then redis.call('HSETNX', away, entry, record.away) end
  if record.static then redis.call('SADD', statics, name) end
  for _, owner in ipairs(record.owners) do redis.call('SADD', owners, owner .. '\t' .. name) end
  if record.owned then redis.call('SADD', prefix .. ':owner:' .. record.owned, name) end
  -- last, so that it isn't run here unless all of it is here
  write_score(later, entry, record.later, is_foreign, is_same)
  write_score(schedule, name, record.bare, is_foreign, is_same)
  write_score(schedule, entry, record.score, is_foreign, is_same)
end

local written, failed, place = {}, {}, 7
for i = 1, count do
  local name, record, kept = ARGV[place], ARGV[place + 1], {}
  local length = tonumber(ARGV[place + 2])
  for one = 1, length do
    local at = place + 3 * one
    kept[one] = {ARGV[at], ARGV[at + 1], ARGV[at + 2]}
  end
  place = place + 3 + 3 * length
  if before and not failed_before[name] then
    written[i] = 0
  else
    local is_written, problem = pcall(write, name, cjson.decode(record), kept)
    written[i] = is_written and 1 or (type(problem) == 'table' and problem.err or tostring(problem))
    if not is_written then
      failed[#failed + 1] = name
    elseif is_back == '1' then
      for _, one in ipairs(kept) do redis.call('UNLINK', prefix .. ':moving:' .. one[1]) end
      redis.call('HDEL', moving, name)
    end
  end
end
if is_back ~= '1' then redis.call('HSET', arrived, move, table.concat(failed, '\0')) end
-- without the right to publish it is noticed a little later
if is_soon then redis.pcall('PUBLISH', wake, 'moved') end
return {written, refused}
