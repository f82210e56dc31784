-- hide_entries: take entries out of a part of the schedule, with all that is kept for them, and return it, so that it can be
-- written to another part. Until it is dropped, it stands under keys that nobody else looks at.
--
-- Uses check_layout, check_mover, clock, move_keys, try_rights
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
-- Returns of each entry 'hidden', the record in moving, and four for each key: its kind, the rest of the key, when it ends in
-- UNIX milliseconds, '0' for never, and its DUMP; or one word: 'due' and 'full': it stays as said above; 'gone': there is
-- nothing, or it is hidden already

-- these fail before the first write if a key has another type, as what a failing script has written stays written
for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do redis.call('ZCARD', key) end
for _, key in ipairs({statics, static_owners, left}) do redis.call('SCARD', key) end
for _, key in ipairs({downgraded, moving}) do redis.call('HLEN', key) end
try_rights(arriving)

-- whether an entry stays where it is, as it is due, or will be soon
local function is_due(score, lease)
  if not score or not margin then return false end
  local hidden_by = lease and string.match(lease, '^([%d.e+]+) ')
  if hidden_by and tonumber(hidden_by) == tonumber(score) then return true end
  return tonumber(score) >= 0 and tonumber(score) <= tonumber(now) + margin
end

local function existing(kept)
  local found = {}
  for _, one in ipairs(kept) do
    if redis.call('EXISTS', kinds[one[1]].key .. one[2]) == 1 then found[#found + 1] = one end
  end
  return found
end

-- take the entry's runs in progress out of the deadlines; returns of each the task id and the score
local function take_deadlines(running)
  local taken, task_ids = {}, redis.pcall('HKEYS', running)
  task_ids = task_ids.err and {} or task_ids
  task_ids[#task_ids + 1] = ''
  for _, task_id in ipairs(task_ids) do
    local member = task_id .. '\0' .. running
    local at = redis.call('ZSCORE', deadlines, member)
    if at and redis.call('ZREM', deadlines, member) == 1 then taken[#taken + 1] = {task_id, at} end
  end
  return taken
end

local bytes = 0
-- take one entry out, with all that is kept for it
local function hide_entry(name, owners_of, kept)
  if redis.call('HEXISTS', moving, name) == 1 then return {'gone'} end
  local entry, places, scores, has_score = kinds.entry.key .. name, places_of(name), {}, false
  local owner, lease = unpack(redis.pcall('HMGET', entry, 'owner', 'lease'))  -- another type has none
  for i, place in ipairs(places) do
    -- a name that begins like a key is no bare name, but another entry's key
    local is_other = i == 4 and string.sub(name, 1, #kinds.entry.key) == kinds.entry.key
    scores[i] = not is_other and redis.call('ZSCORE', place[1], place[2])
    if i > 2 and is_due(scores[i], lease) then return {'due'} end
    has_score = has_score or scores[i]
  end
  if bytes > max_bytes then return {'full'} end

  local record = {
    id = move, to = target, at = now, kept = existing(kept), scores = scores, owners = {},
    deadlines = take_deadlines(kinds.running.key .. name), away = redis.call('HGET', downgraded, entry),
    static = redis.call('SREM', statics, name) == 1,
  }
  for _, one in ipairs(owners_of) do
    if redis.call('SREM', static_owners, one .. '\t' .. name) == 1 then record.owners[#record.owners + 1] = one end
  end
  if owner and redis.pcall('SREM', kinds.owner.key .. owner, name) == 1 then record.owned = owner end
  local has_any = has_score or record.away or record.static
  if not has_any and #record.kept + #record.deadlines + #record.owners == 0 then return {'gone'} end
  record.is_foreign = is_foreign or redis.call('SISMEMBER', left, name) == 1
  if not is_foreign then redis.call('SADD', left, name) end

  local row = {'hidden', cjson.encode(record)}
  redis.call('HSET', moving, name, row[2])
  for i, place in ipairs(places) do
    if scores[i] then redis.call('ZREM', place[1], place[2]) end
  end
  if record.away then redis.call('HDEL', downgraded, entry) end
  for _, one in ipairs(record.kept) do
    redis.call('RENAME', kinds[one[1]].key .. one[2], kinds[one[1]].hidden .. one[2])
  end
  bytes = bytes + dump_hidden(row, record.kept)
  return row
end

local rows = {}
for i, item in ipairs(items) do rows[i] = hide_entry(item.name, item.owners, item.kept) end
return rows
