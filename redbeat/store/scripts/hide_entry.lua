-- hide_entry(zone, name, owners_of, kept): take one entry out of its part, with all that is kept for it, and hide that. zone
-- is what is the same for all of a call: the keys of the part by the names that they have in hide_entries; has: which of them
-- aren't empty; kinds; move, target, margin, is_foreign, now, now_ms; bytes, how many are hidden by now, and max_bytes.
-- kept is what may be kept for it: of each the kind and the rest of the key. Returns a row of hide_entries.
-- is_due(zone, score, lease): whether an entry stays where it is, as it is due, or will be soon.
-- Not scripts of their own, but put in front of those that hide entries.
local function is_due(zone, score, lease)
  if not score or not zone.margin then return false end
  local hidden_by = lease and string.match(lease, '^([%d.e+]+) ')
  if hidden_by and tonumber(hidden_by) == tonumber(score) then return true end
  return tonumber(score) >= 0 and tonumber(score) <= tonumber(zone.now) + zone.margin
end

-- those of kept that are there
local function existing(kinds, kept)
  local keys, found = {}, {}
  for i, one in ipairs(kept) do keys[i] = kinds[one[1]].key .. one[2] end
  for first = 1, #keys, 1000 do
    local last = math.min(first + 999, #keys)
    local count = redis.call('EXISTS', unpack(keys, first, last))
    for i = first, last do
      if count == 0 then break end
      if redis.call('EXISTS', keys[i]) == 1 then found[#found + 1], count = kept[i], count - 1 end
    end
  end
  return found
end

-- take the entry's runs in progress out of the deadlines; returns of each the task id and the score
local function take_deadlines(zone, running)
  local taken = {}
  local task_ids = redis.pcall('HKEYS', running)
  task_ids = task_ids.err and {} or task_ids
  if redis.pcall('HEXISTS', running, '') ~= 1 then task_ids[#task_ids + 1] = '' end
  for _, task_id in ipairs(task_ids) do
    local member = task_id .. '\0' .. running
    local at = redis.call('ZSCORE', zone.deadlines, member)
    if at then
      taken[#taken + 1] = {task_id, at}
      redis.call('ZREM', zone.deadlines, member)
    end
  end
  return taken
end

local function hide_entry(zone, name, owners_of, kept)
  local kinds, has = zone.kinds, zone.has
  local entry, running = kinds.entry.key .. name, kinds.running.key .. name
  -- what is empty isn't asked
  local function ask(command, key, member) return has[key] and redis.call(command, key, member) or nil end
  if ask('HEXISTS', zone.moving, name) == 1 then return {'busy'} end
  local fields = redis.pcall('HMGET', entry, 'owner', 'lease')  -- another type has none
  local owner, lease = fields[1], fields[2]
  local score, later_score = ask('ZSCORE', zone.schedule, entry), ask('ZSCORE', zone.later, entry)
  -- a bare name; else it is another entry's key
  local is_name = string.sub(name, 1, #kinds.entry.key) ~= kinds.entry.key
  local bare = is_name and ask('ZSCORE', zone.schedule, name) or nil
  if is_due(zone, score, lease) or is_due(zone, bare, lease) or is_due(zone, later_score, lease) then return {'due'} end
  if zone.bytes > zone.max_bytes then return {'full'} end

  local record = {
    id = zone.move, to = zone.target, at = zone.now, kept = existing(kinds, kept), score = score, bare = bare,
    later = later_score, expected = ask('ZSCORE', zone.expected, running), streak = ask('ZSCORE', zone.streaks, running),
    away = ask('HGET', zone.away, entry), owners = {}, deadlines = has[zone.deadlines] and take_deadlines(zone, running) or {},
  }
  if ask('SREM', zone.statics, name) == 1 then record.static = 1 end
  for _, one in ipairs(owners_of) do
    if ask('SREM', zone.owners, one .. '\t' .. name) == 1 then record.owners[#record.owners + 1] = one end
  end
  if owner and redis.pcall('SREM', kinds.owner.key .. owner, name) == 1 then record.owned = owner end
  local has_any = score or bare or later_score or record.expected or record.streak or record.away or record.static
  if not has_any and #record.kept + #record.deadlines + #record.owners == 0 then return {'gone'} end
  record.foreign = (zone.is_foreign or ask('SISMEMBER', zone.left, name) == 1) and 1 or nil
  if not zone.is_foreign then redis.call('SADD', zone.left, name) end

  local row = {'hidden', cjson.encode(record)}
  redis.call('HSET', zone.moving, name, row[2])
  if score then redis.call('ZREM', zone.schedule, entry) end
  if bare then redis.call('ZREM', zone.schedule, name) end
  if later_score then redis.call('ZREM', zone.later, entry) end
  if record.expected then redis.call('ZREM', zone.expected, running) end
  if record.streak then redis.call('ZREM', zone.streaks, running) end
  if record.away then redis.call('HDEL', zone.away, entry) end
  for _, one in ipairs(record.kept) do
    redis.call('RENAME', kinds[one[1]].key .. one[2], kinds[one[1]].hidden .. one[2])
  end
  zone.bytes = zone.bytes + dump_hidden(row, kinds, record.kept, zone.now_ms)
  return row
end

