-- receive_entry(zone, name, record, kept): write one entry, with all that is kept for it, to the part where it belongs. zone
-- is what is the same for all of a call: the keys of the part by the names that they have in receive_entries; kinds; last,
-- until when an entry is due soon; is_soon and refused, which are set. kept has of each key its kind, the rest of the key,
-- when it ends, and what it holds.
-- Not a script of its own, but put in front of those that write entries that were moved.
local function write_kept(zone, kept, is_foreign)
  local kinds, by_kind, has_events = zone.kinds, {}, false
  for _, one in ipairs(kept) do by_kind[one[1]] = one[4] end
  if by_kind.events then has_events = redis.call('EXISTS', kinds.events.key) == 1 end
  for _, one in ipairs(kept) do
    local kind, rest, ends_at, payload = unpack(one)
    local home = kinds[kind].key .. rest
    if has_events and kind == 'events' then
      merge_events(home, kinds.events_read.key, zone.arriving, payload, by_kind.events_read)
    elseif has_events and kind == 'events_read' then
      has_events = true  -- it is about the other stream
    elseif redis.call('EXISTS', home) == 0 then
      redis.call('RESTORE', home, ends_at, payload, 'ABSTTL')
    elseif merge_kept(kind, home, zone.arriving, payload, is_foreign) then
      local unmoved = kinds[kind].unmoved .. rest
      redis.call('RESTORE', unmoved, ends_at, payload, 'REPLACE', 'ABSTTL')
      zone.refused[#zone.refused + 1] = unmoved
    end
  end
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

local function receive_entry(zone, name, record, kept)
  local kinds = zone.kinds
  local entry, running = kinds.entry.key .. name, kinds.running.key .. name
  local is_foreign = record.foreign == 1
  local definition = redis.pcall('HGET', entry, 'definition')
  write_kept(zone, kept, is_foreign)
  local is_same = type(definition) == 'string' and definition == redis.call('HGET', entry, 'definition')
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

