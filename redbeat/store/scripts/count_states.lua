-- count_states: count entries by their states, some at a time; those whose state isn't obvious are named. One that beat
-- will find to be unusable when it is due is what its score says until then.
--
-- Uses clock
-- KEYS schedule     zset of entry keys, scored by due time
-- ARGV cursor       '0' for the first, then what the call before has returned
-- ARGV limit        about how many entries
-- ARGV small_bytes  a larger definition or policy isn't looked into
--
-- Returns {cursor, now, scheduled, due, others}
--   cursor     '0': these were the last ones
--   now        the server's clock, UNIX seconds
--   scheduled  how many are due later
--   due        how many are due
--   others     members and scores of all others, by turns
local found = redis.call('ZSCAN', schedule, cursor, 'COUNT', limit)
local scheduled, due, others = 0, 0, {}

for place = 1, #found[2], 2 do
  local member, score = found[2][place], tonumber(found[2][place + 1])
  -- without an error, and enabled as far as one can see, it is what its score says; a bare name is no entry's key
  local size = redis.pcall('HSTRLEN', member, 'definition')
  local is_small = type(size) == 'number' and size > 0 and math.max(size, redis.call('HSTRLEN', member, 'policy')) <= small_bytes
  local definition, policy = unpack(is_small and redis.call('HMGET', member, 'definition', 'policy') or {''})
  local is_obvious = is_small and score >= 0 and score < 1e11 and redis.call('HSTRLEN', member, 'error') == 0
  is_obvious = is_obvious and not string.find(definition, '"enabled"%s*:%s*[^%st]')
  for _, field in ipairs({'"paused', '"end_time"', '"max_runs"', '"one_off"'}) do
    is_obvious = is_obvious and not string.find(policy or '', field, 1, true)
  end
  if not is_obvious then
    others[#others + 1], others[#others + 2] = member, found[2][place + 1]
  elseif score <= tonumber(now) then
    due = due + 1
  else
    scheduled = scheduled + 1
  end
end
return {found[1], now, scheduled, due, others}
