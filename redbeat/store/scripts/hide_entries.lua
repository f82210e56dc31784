-- hide_entries: take entries out of a part of the schedule, with all that is kept for them, and return it, so that it can be
-- written to another part. Until it is dropped, it stands under keys that no other process reads. Or read what was hidden.
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
-- ARGV target         the prefix of the part to which they go; nil: those are read that are hidden already
-- ARGV margin         an entry that is due within so many seconds, or leased by another beat, stays; nil: none does
-- ARGV is_foreign     what is here was written by somebody who doesn't know the layout; else only what has left before
-- ARGV max_bytes      when so many bytes are hidden, the rest of the entries stay
-- ARGV prefix         the part's
-- ARGV hidden         how keys begin while they are hidden; what followed the prefix comes next
-- ARGV running_names  how the keys of runs in progress begin; the entry's name comes next
-- ARGV owner_names    how the keys of an owner's names begin; the owner comes next
-- ARGV items          of each entry its name, the owners that it may have by beat_schedules, and kept: what may be kept for
--                     it, of each key its kind and what follows the prefix
-- What is kept for entries is read and renamed; its keys are made of these beginnings and of what follows them.
--
-- Returns of each entry 'hidden', its name, the record in moving, and a DUMP for each key in the record, '' if its time is
-- over; or one word: 'due' and 'full': it stays as said above; 'gone': there is nothing to hide, or to read

-- these fail before the first write if a key has another type, as what a failing script has written stays written
for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do redis.call('ZCARD', key) end
for _, key in ipairs({statics, static_owners, left}) do redis.call('SCARD', key) end
for _, key in ipairs({downgraded, moving}) do redis.call('HLEN', key) end
if target then try_rights(arriving) end

-- whether an entry stays where it is, as it is due, or will be soon
local function is_due(score, lease)
  if not score or not margin then return false end
  local hidden_by = lease and string.match(lease, '^([%d.e+]+) ')
  if hidden_by and tonumber(hidden_by) == tonumber(score) then return true end
  return tonumber(score) >= 0 and tonumber(score) <= tonumber(now) + margin
end

-- of each key its kind, what follows the prefix, and when it ends
local function existing(kept)
  local found = {}
  for _, one in ipairs(kept) do
    local key = prefix .. one[2]
    if redis.call('EXISTS', key) == 1 then found[#found + 1] = {one[1], one[2], ends_at(key)} end
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
-- what a record that isn't one has hidden isn't known, which the caller sees
local function read_hidden(name, text)
  local row = {'hidden', name, text}
  pcall(function()
    for _, one in ipairs(cjson.decode(text).kept) do
      row[#row + 1] = redis.call('DUMP', hidden .. one[2]) or ''
      bytes = bytes + #row[#row]
    end
  end)
  return row
end

-- take one entry out, with all that is kept for it
local function hide_entry(name, owners_of, kept)
  local entry, places, scores, has_score = prefix .. name, places_of(name), {}, false
  local owner, lease = unpack(redis.pcall('HMGET', entry, 'owner', 'lease'))  -- another type has none
  for i, place in ipairs(places) do
    -- a name that begins like a key is no bare name, but another entry's key
    local is_other = i == 4 and string.sub(name, 1, #prefix) == prefix
    scores[i] = not is_other and redis.call('ZSCORE', place[1], place[2])
    if i > 2 and is_due(scores[i], lease) then return {'due'} end
    has_score = has_score or scores[i]
  end
  if bytes > max_bytes then return {'full'} end

  local record = {
    id = move, to = target, kept = existing(kept), scores = scores, owners = {},
    deadlines = take_deadlines(running_names .. name), away = redis.call('HGET', downgraded, entry),
    static = redis.call('SREM', statics, name) == 1,
  }
  for _, one in ipairs(owners_of) do
    if redis.call('SREM', static_owners, one .. '\t' .. name) == 1 then record.owners[#record.owners + 1] = one end
  end
  if owner and redis.pcall('SREM', owner_names .. owner, name) == 1 then record.owned = owner end
  local has_any = has_score or record.away or record.static
  if not has_any and #record.kept + #record.deadlines + #record.owners == 0 then return {'gone'} end
  record.is_foreign = is_foreign or redis.call('SISMEMBER', left, name) == 1
  if not is_foreign then redis.call('SADD', left, name) end

  local text = cjson.encode(record)
  redis.call('HSET', moving, name, text)
  for i, place in ipairs(places) do
    if scores[i] then redis.call('ZREM', place[1], place[2]) end
  end
  if record.away then redis.call('HDEL', downgraded, entry) end
  for _, one in ipairs(record.kept) do redis.call('RENAME', prefix .. one[2], hidden .. one[2]) end
  return read_hidden(name, text)
end

local rows = {}
for i, item in ipairs(items) do
  local text = redis.call('HGET', moving, item.name)
  if text then
    rows[i] = target and {'gone'} or read_hidden(item.name, text)
  else
    rows[i] = target and hide_entry(item.name, item.owners, item.kept) or {'gone'}
  end
end
return rows
