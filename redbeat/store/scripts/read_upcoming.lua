-- read_upcoming: read usual entries that fall due soon, the earliest first; nothing is written.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- ARGV[1] seconds    how far to look ahead
-- ARGV[2] after      score to begin at, '' for the time now
-- ARGV[3] offset     how many members with that score or a higher one to leave out
-- ARGV[4] limit      how many members to look at
-- ARGV[5] entry_bytes  an entry whose definition, meta and policy have more bytes isn't read
-- ARGV[6] prefix     what every entry's key starts with
-- Reads the entries' hashes, whose keys are in the zset. An entry that has failed, was asked for, is hidden by another
-- beat, or has a revision, is left out, as are members that aren't hashes.
--
-- Returns {now, scores, rows}
--   now     the server's clock, UNIX seconds with microseconds, a string
--   scores  of all members that were looked at, in order
--   rows    as of claim_due, of those that were read
local schedule = KEYS[1]
local seconds, after, offset, limit = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local entry_bytes, prefix = tonumber(ARGV[5]), ARGV[6]

local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
local last = string.format('%.6f', tonumber(now) + seconds)
local first = after == '' and '(' .. now or after
local due = redis.call('ZRANGEBYSCORE', schedule, first, last, 'WITHSCORES', 'LIMIT', offset, limit)
local scores, rows = {}, {}
for i = 1, #due, 2 do
  local key, nominal = due[i], due[i + 1]
  scores[#scores + 1] = nominal
  local is_entry = string.sub(key, 1, #prefix) == prefix and redis.call('TYPE', key).ok == 'hash'
  local size, error_size = 0, 0
  if is_entry then size, error_size = measure_entry(key) end
  if is_entry and size <= entry_bytes and error_size == 0 then
    local fields = read_fields(key, entry_bytes, size, error_size)
    local is_foreign = tonumber(nominal) % 1 ~= 0 and is_meta_foreign(fields[2], fields[7])
    if fields[1] and not fields[5] and not fields[6] then
      local row = {key, nominal, fields[1], fields[2], fields[3]}
      if is_foreign then row = {key, nominal, fields[1], fields[2], fields[3], false, false, false, false, false, 1} end
      rows[#rows + 1] = row
    end
  end
end
return {now, scores, rows}
