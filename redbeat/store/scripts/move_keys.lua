-- places_of(name): the sorted sets in which an entry may stand, each with its member; those by which it is run come last.
-- ends_at(key): when a key ends in UNIX milliseconds, '0' for never.
-- dump_hidden(row, kept): add what is hidden to a row, four for each key; returns how many bytes it has.
-- Not scripts of their own, but put in front of those that move entries.
local function places_of(name)
  local entry, running = kinds.entry.key .. name, kinds.running.key .. name
  return {{expected, running}, {streaks, running}, {later, entry}, {schedule, name}, {schedule, entry}}
end

local function ends_at(key)
  local rest_ms = redis.call('PTTL', key)
  return rest_ms < 0 and '0' or string.format('%.0f', tonumber(now) * 1000 + rest_ms)
end

local function dump_hidden(row, kept)
  local bytes = 0
  for _, one in ipairs(kept) do
    local hidden = kinds[one[1]].hidden .. one[2]
    local payload = redis.call('DUMP', hidden)
    if payload then  -- else its time is over
      local length = #row
      row[length + 1], row[length + 2], row[length + 3], row[length + 4] = one[1], one[2], ends_at(hidden), payload
      bytes = bytes + #payload
    end
  end
  return bytes
end

