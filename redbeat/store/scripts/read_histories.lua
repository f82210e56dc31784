-- read_histories: return the newest records of histories, without those that are too long to be RedBeat's own.
--
-- KEYS past[]        lists of records, the newest first
-- ARGV limit         how many of each
-- ARGV record_bytes  a longer one is left out
-- ARGV is_strict     a key of another type is an error; else it counts as empty
--
-- Returns for each history its records
local histories = {}
for i, key in ipairs(past) do
  local found, records = redis.pcall('LRANGE', key, 0, limit - 1), {}
  if found.err and (is_strict or not string.find(found.err, 'WRONGTYPE', 1, true)) then return found end
  for _, record in ipairs(found) do
    if #record <= record_bytes then records[#records + 1] = record end
  end
  histories[i] = records
end
return histories
