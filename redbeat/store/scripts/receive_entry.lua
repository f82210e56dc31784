-- receive_entry(zone, name, record, kept): write one entry, with all that is kept for it, to the part where it belongs, all of
-- it or nothing. zone is what is the same for all of a call: the keys of the part by the names that they have in
-- receive_entries; kinds; last, until when an entry is due soon; is_soon and refused, which are set. kept has of each key its
-- kind, the rest of the key, when it ends, and what it holds.
-- place_entry(zone, name, record, definition): write what a part's own keys say of an entry; what is kept for it stands there
-- by then. definition is what it had here before.
-- Not scripts of their own, but put in front of those that write entries that were moved.

-- all of it stands under names below arriving at first, also a copy of what it is merged with, as what a failing script has
-- written stays written. Returns what is to be renamed, and to what, in pairs.
local function prepare_kept(zone, kept, is_foreign)
  local kinds, by_kind, ready = zone.kinds, {}, {}
  -- nil: its time is over
  local function stage(payload, ends_at)
    local staged = zone.arriving .. ':' .. #zone.staged + 1
    redis.call('RESTORE', staged, ends_at, payload, 'REPLACE', 'ABSTTL')
    zone.staged[#zone.staged + 1] = staged
    return (ends_at == '0' or redis.call('EXISTS', staged) == 1) and staged or nil
  end
  local function copy(key)
    local rest_ms = redis.call('PTTL', key)
    return stage(redis.call('DUMP', key), rest_ms < 0 and '0' or string.format('%.0f', zone.now_ms + rest_ms))
  end
  local function finish(from, to)
    if from then ready[#ready + 1] = {from, to} end
  end
  for _, one in ipairs(kept) do by_kind[one[1]] = one end
  local has_events = by_kind.events and redis.call('EXISTS', kinds.events.key) == 1
  for _, one in ipairs(kept) do
    local kind, rest = one[1], one[2]
    local home = kinds[kind].key .. rest
    local is_told_with = has_events and kind == 'events_read'  -- it is about the other stream
    local arrived = not is_told_with and stage(one[4], one[3])
    local merged = arrived and redis.call('EXISTS', home) == 1 and copy(home)
    if has_events and kind == 'events' then
      local told = by_kind.events_read
      finish(merge_events(merged, kinds.events_read.key, arrived, told and stage(told[4], told[3])), kinds.events_read.key)
      finish(merged, home)
    elseif arrived and not merged then
      finish(arrived, home)
    elseif merged and merge_values(kind, merged, arrived, is_foreign) then
      finish(arrived, kinds[kind].unmoved .. rest)
      zone.unmerged[#zone.unmerged + 1] = kinds[kind].unmoved .. rest
    elseif merged then
      finish(merged, home)
    end
  end
  return ready
end

-- what stands here is newer, unless it is the foreign one; of two times for one definition the earlier counts
local function write_score(zone, key, member, score, is_foreign, is_same)
  if not score then return end
  local ours = redis.call('ZSCORE', key, member)
  if ours and not is_foreign then
    local is_ours_first = tonumber(ours) >= 0 and (tonumber(score) < 0 or tonumber(ours) < tonumber(score))
    if not is_same or is_ours_first then score = ours end
  end
  redis.call('ZADD', key, score, member)
  zone.is_soon = zone.is_soon or (tonumber(score) >= 0 and tonumber(score) <= zone.last)
end

local function place_entry(zone, name, record, definition)
  local kinds = zone.kinds
  local entry, running = kinds.entry.key .. name, kinds.running.key .. name
  local is_foreign = record.foreign == 1
  local is_same = type(definition) == 'string' and definition == redis.pcall('HGET', entry, 'definition')
  local how = is_foreign and 'CH' or 'NX'
  for _, one in ipairs(record.deadlines) do redis.call('ZADD', zone.deadlines, how, one[2], one[1] .. '\0' .. running) end
  how = is_foreign and 'NX' or 'CH'
  if record.expected then redis.call('ZADD', zone.expected, how, record.expected, running) end
  if record.streak then redis.call('ZADD', zone.streaks, how, record.streak, running) end
  if record.away then redis.call('HSETNX', zone.away, entry, record.away) end
  if record.static then redis.call('SADD', zone.statics, name) end
  for _, owner in ipairs(record.owners) do redis.call('SADD', zone.owners, owner .. '\t' .. name) end
  if record.owned then redis.call('SADD', kinds.owner.key .. record.owned, name) end
  -- last, so that it isn't run here unless all of it is here
  write_score(zone, zone.later, entry, record.later, is_foreign, is_same)
  write_score(zone, zone.schedule, name, record.bare, is_foreign, is_same)
  write_score(zone, zone.schedule, entry, record.score, is_foreign, is_same)
end

local function receive_entry(zone, name, record, kept)
  zone.staged, zone.unmerged = {}, {}
  if not zone.is_allowed then
    try_rights(zone.arriving)
    zone.is_allowed = true
  end
  if record.owned then redis.call('SCARD', zone.kinds.owner.key .. record.owned) end
  local definition = redis.pcall('HGET', zone.kinds.entry.key .. name, 'definition')
  for _, one in ipairs(prepare_kept(zone, kept, record.foreign == 1)) do redis.call('RENAME', one[1], one[2]) end
  for _, staged in ipairs(zone.staged) do redis.call('UNLINK', staged) end
  for _, key in ipairs(zone.unmerged) do zone.refused[#zone.refused + 1] = key end
  place_entry(zone, name, record, definition)
end

