-- read_histories: return the newest records of histories, without those that are too long to be RedBeat's own.
--
-- KEYS[1..] past        lists of records, the newest first; a key of another type counts as empty
-- ARGV[1] limit         how many of each
-- ARGV[2] record_bytes  a longer one is left out
--
-- Returns for each history its records
local limit, record_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])

local histories = {}
for i = 1, #KEYS do
  local found, records = redis.pcall('LRANGE', KEYS[i], 0, limit - 1), {}
  if found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then return found end
  for _, record in ipairs(found) do
    if #record <= record_bytes then records[#records + 1] = record end
  end
  histories[i] = records
end
return histories
