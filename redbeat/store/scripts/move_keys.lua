-- check_mover(mover, token): ends the script if another process moves entries of this part by now.
-- dump_hidden(row, kinds, kept, now_ms): add what is hidden to a row, four for each key; returns how many bytes it has.
-- Not scripts of their own, but put in front of those that move entries.
local function check_mover(mover, token)
  if redis.call('GET', mover) ~= token then error('MOVER Another process moves the entries of this part by now.') end
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

