-- hide_entries: take entries out of a part of the schedule, with all that is kept for them, and return it, so that it can be
-- written to another part. Until it is dropped, it stands under keys that nobody else looks at.
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
-- KEYS[12] arriving  something stands here for a moment, to see whether this user may do all that is needed
-- ARGV[1] token      the caller's
-- ARGV[2] move       the id of this move
-- ARGV[3] target     how the keys of entries begin in the part to which they go
-- ARGV[4] margin     an entry that is due, or will be in so many seconds, or is another beat's by its lease, stays; '': none does
-- ARGV[5] is_foreign  1: what is here was written by somebody who doesn't know the layout; 0: only what has left before
-- ARGV[6] max_bytes  when so many bytes are hidden, the rest of the entries stay
-- ARGV[7..] kinds    as take_kinds takes them; after them how many entries there are, and of each its name, the owners that it
--                    may have by beat_schedules, and what may be kept for it, two for each: its kind, and the rest of the key
-- What is kept for entries is read and renamed; its keys are made of what kinds says and of these rests.
--
-- Returns {now, rows}
--   now   the server's clock, UNIX seconds
--   rows  of each entry 'hidden', the record in moving, and four for each key: its kind, the rest of the key, when it ends in
--         UNIX milliseconds, '0' for never, and its DUMP; or one word: 'due' and 'full': it stays as said above; 'busy': it is
--         hidden already; 'gone': there is nothing
local schedule, later, statics, owners, away = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deadlines, expected, streaks, mover, moving, left = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local arriving = KEYS[12]
local token, move, target, margin, is_foreign, max_bytes = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])

check_mover(mover, token)
-- these fail before the first write if a key has another type, as what a failing script has written stays written
local has = {}
for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do has[key] = redis.call('ZCARD', key) > 0 end
for _, key in ipairs({statics, owners, left}) do has[key] = redis.call('SCARD', key) > 0 end
for _, key in ipairs({away, moving}) do has[key] = redis.call('HLEN', key) > 0 end
try_rights(arriving)

local time = redis.call('TIME')
local zone = {
  schedule = schedule, later = later, statics = statics, owners = owners, away = away, deadlines = deadlines,
  expected = expected, streaks = streaks, moving = moving, left = left, has = has, move = move, target = target,
  margin = margin, is_foreign = is_foreign, bytes = 0, max_bytes = max_bytes,
  now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2])),
  now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000),
}
local kinds, place = take_kinds(7)
zone.kinds = kinds
local rows, count = {}, tonumber(ARGV[place])
place = place + 1
for number = 1, count do
  local name, owners_of, kept = ARGV[place], {}, {}
  owners_of, place = take_list(place + 1, 1)
  kept, place = take_list(place, 2)
  rows[number] = hide_entry(zone, name, owners_of, kept)
end
return {zone.now, rows}
