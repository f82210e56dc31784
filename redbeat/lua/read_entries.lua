-- read_entries: entries as they stand, when each is due, and the server's clock.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2..] entries  the entries' keys
--
-- Returns {now, rows}
--   now   the server's clock, UNIX seconds with microseconds, a string
--   rows  {type, score, definition, meta, policy, error} for each entry; what is missing is nil
local schedule = KEYS[1]

local time = redis.call('TIME')
local rows = {}
for i = 2, #KEYS do
  local key = KEYS[i]
  local kind, fields = redis.call('TYPE', key).ok, {false, false, false, false}
  if kind == 'hash' then
    fields = redis.call('HMGET', key, 'definition', 'meta', 'policy', 'error')
  end
  rows[i - 1] = {kind, redis.call('ZSCORE', schedule, key), fields[1], fields[2], fields[3], fields[4]}
end
return {string.format('%d.%06d', tonumber(time[1]), tonumber(time[2])), rows}
