-- place_entry(name, record, definition): write what a part's own keys say of an entry; what is kept for it stands there by
-- then. definition is what it had here before.
-- is_soon: beat may have to look soon.
-- Not scripts of their own, but put in front of those that write entries that were moved, after move_keys.
local soon, is_soon = tonumber(now) + 5, false

-- what stands here is newer, unless it is the foreign one; of two times for one definition the earlier counts
local function write_score(key, member, score, is_foreign, is_same)
  local ours = redis.call('ZSCORE', key, member)
  if ours and not is_foreign then
    local is_ours_first = tonumber(ours) >= 0 and (tonumber(score) < 0 or tonumber(ours) < tonumber(score))
    if not is_same or is_ours_first then score = ours end
  end
  redis.call('ZADD', key, score, member)
  is_soon = is_soon or (tonumber(score) >= 0 and tonumber(score) <= soon)
end

local function place_entry(name, record, definition)
  local entry, running = prefix .. name, running_names .. name
  local is_same = type(definition) == 'string' and definition == redis.pcall('HGET', entry, 'definition')
  local how, how_beside = record.is_foreign and 'CH' or 'NX', record.is_foreign and 'NX' or 'CH'
  for _, one in ipairs(record.deadlines) do redis.call('ZADD', deadlines, how, one[2], one[1] .. '\0' .. running) end
  if record.away then redis.call('HSETNX', downgraded, entry, record.away) end
  if record.static then redis.call('SADD', statics, name) end
  for _, owner in ipairs(record.owners) do redis.call('SADD', static_owners, owner .. '\t' .. name) end
  if record.owned then redis.call('SADD', owner_names .. record.owned, name) end
  -- last, so that it isn't run here unless all of it is here
  for i, place in ipairs(places_of(name)) do
    local key, member, score = place[1], place[2], record.scores[i]
    if score and i <= 2 then
      redis.call('ZADD', key, how_beside, score, member)
    elseif score then
      write_score(key, member, score, record.is_foreign, is_same)
    end
  end
end

