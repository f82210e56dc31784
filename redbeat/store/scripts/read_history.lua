-- read_history: return the records of an entry's runs, without those that are too long to be RedBeat's own.
--
-- KEYS history       list of records, the newest first
-- ARGV limit         how many of them
-- ARGV record_bytes  a longer one is left out
--
-- Returns the records
local records = {}
for _, record in ipairs(redis.call('LRANGE', history, 0, limit - 1)) do
  if #record <= record_bytes then records[#records + 1] = record end
end
return records
