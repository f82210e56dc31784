-- places_of(name): the sorted sets in which an entry may stand, each with its member; those by which it is run come last.
-- ends_at(key): when a key ends in UNIX milliseconds, '0' for never.
-- Not scripts of their own, but put in front of those that move entries.
local function places_of(name)
  local entry, running = prefix .. name, running_names .. name
  return {{expected, running}, {streaks, running}, {later, entry}, {schedule, name}, {schedule, entry}}
end

local function ends_at(key)
  local rest_ms = redis.call('PTTL', key)
  return rest_ms < 0 and '0' or string.format('%.0f', tonumber(now) * 1000 + rest_ms)
end
