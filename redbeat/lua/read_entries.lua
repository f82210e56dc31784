-- read_entries: entries as they stand, when each is due, and the server's clock.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2..] entries  the entries' keys
--
-- Returns {now, rows}
--   now   the server's clock, UNIX seconds with microseconds, a string
--   rows  {definition, meta, policy, error, score, type} for each entry; what is missing is nil, and so is
--         the row of an entry that isn't there
local schedule = KEYS[1]

local time = redis.call('TIME')
local rows = {}
for i = 2, #KEYS do
  local key, row = KEYS[i], false
  local kind = redis.call('TYPE', key).ok
  if kind == 'hash' then
    row = redis.call('HMGET', key, 'definition', 'meta', 'policy', 'error')
  elseif kind ~= 'none' then
    row = {false, false, false, false}
  end
  if row then row[5], row[6] = redis.call('ZSCORE', schedule, key), kind end
  rows[i - 1] = row
end
return {string.format('%d.%06d', tonumber(time[1]), tonumber(time[2])), rows}
