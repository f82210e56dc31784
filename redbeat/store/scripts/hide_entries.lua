-- hide_entries: take entries out of a part of the schedule, with all that is kept for them, and return it, so that it can be
-- written to another part. Until it is dropped, it stands under keys that nobody else looks at.
--
-- Uses check_layout, clock, move_keys, try_rights, hide_entry
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
-- KEYS arriving       something stands here for a moment, to see whether this user may do all that is needed
-- ARGV token          the caller's
-- ARGV move           the id of this move
-- ARGV target         how the keys of entries begin in the part to which they go
-- ARGV margin         an entry that is due within so many seconds, or leased by another beat, stays; nil: none does
-- ARGV is_foreign     what is here was written by somebody who doesn't know the layout; else only what has left before
-- ARGV max_bytes      when so many bytes are hidden, the rest of the entries stay
-- ARGV kinds          how keys begin that are moved, by their kinds: key; hidden: while they are hidden; unmoved: what can't be
--                     merged. The name of an entry follows, or ''
-- ARGV items          of each entry its name, the owners that it may have by beat_schedules, and kept: what may be kept for
--                     it, of each key its kind and the rest of it
-- What is kept for entries is read and renamed; its keys are made of what kinds says and of these rests.
--
-- Returns {now, rows}
--   now   the server's clock, UNIX seconds
--   rows  of each entry 'hidden', the record in moving, and four for each key: its kind, the rest of the key, when it ends in
--         UNIX milliseconds, '0' for never, and its DUMP; or one word: 'due' and 'full': it stays as said above; 'busy': it is
--         hidden already; 'gone': there is nothing
check_mover(mover, token)
-- these fail before the first write if a key has another type, as what a failing script has written stays written
local has = {}
for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do has[key] = redis.call('ZCARD', key) > 0 end
for _, key in ipairs({statics, static_owners, left}) do has[key] = redis.call('SCARD', key) > 0 end
for _, key in ipairs({downgraded, moving}) do has[key] = redis.call('HLEN', key) > 0 end
try_rights(arriving)

local zone = {
  schedule = schedule, later = later, statics = statics, owners = static_owners, away = downgraded, deadlines = deadlines,
  expected = expected, streaks = streaks, moving = moving, left = left, has = has, move = move, target = target,
  margin = margin, is_foreign = is_foreign, bytes = 0, max_bytes = max_bytes, kinds = kinds,
  now = now,
  now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000),
}
local rows = {}
for i, item in ipairs(items) do rows[i] = hide_entry(zone, item.name, item.owners, item.kept) end
return {now, rows}
