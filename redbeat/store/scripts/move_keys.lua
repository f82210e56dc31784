-- check_mover(mover, token): ends the script if another process moves entries of this part by now.
-- take_kinds(place): how keys begin that are moved, from this place in ARGV on: how many kinds there are, and four for each:
-- its word, how the key begins, how it begins while it is hidden, and how one begins that can't be merged. Returns a table
-- of them by their words, and the next place. The rest of a key is told with each of them: the name of its entry, or ''.
-- take_list(place, size): so many texts for each of as many as are told at this place in ARGV. Returns them as tables, and
-- the next place.
-- dump_hidden(row, kinds, kept, now_ms): add what is hidden to a row, four for each key; returns how many bytes it has.
-- Not scripts of their own, but put in front of those that move entries.
local function check_mover(mover, token)
  if redis.call('GET', mover) ~= token then error('MOVER Another process moves the entries of this part by now.') end
end

local function take_kinds(place)
  local kinds, count = {}, tonumber(ARGV[place])
  for at = place + 1, place + 4 * count, 4 do
    kinds[ARGV[at]] = {key = ARGV[at + 1], hidden = ARGV[at + 2], unmoved = ARGV[at + 3]}
  end
  return kinds, place + 1 + 4 * count
end

local function take_list(place, size)
  local found, count = {}, tonumber(ARGV[place])
  for i = 1, count do
    local first = place + 1 + (i - 1) * size
    found[i] = {unpack(ARGV, first, first + size - 1)}
  end
  return found, place + 1 + count * size
end

local function dump_hidden(row, kinds, kept, now_ms)
  local bytes = 0
  for _, one in ipairs(kept) do
    local hidden = kinds[one[1]].hidden .. one[2]
    local payload, rest_ms = redis.call('DUMP', hidden), redis.call('PTTL', hidden)
    if payload then  -- else its time is over
      local length = #row
      row[length + 1], row[length + 2], row[length + 4] = one[1], one[2], payload
      row[length + 3] = rest_ms < 0 and '0' or string.format('%.0f', now_ms + rest_ms)
      bytes = bytes + #payload
    end
  end
  return bytes
end

