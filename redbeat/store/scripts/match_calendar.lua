-- match_calendar(key, read): tell whether a calendar is still what the caller has read; not a script of its own, but
-- put in front of those that need it.
-- `read` is decoded: the calendar's fields, or the type of its key as a text, 'none' for no key.
local function match_calendar(key, read)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'hash' or type(read) ~= 'table' then return read == kind end
  local fields, left = redis.call('HGETALL', key), 0
  for _ in pairs(read) do left = left + 1 end
  for i = 1, #fields, 2 do
    if read[fields[i]] ~= fields[i + 1] then return false end
    left = left - 1
  end
  return left == 0
end

