-- take_figures: add what was counted since the last call to the totals and to the minute, and return it: once, whoever
-- asks. Labels that are new are kept.
--
-- KEYS[1] lock       the leader's token; where there is no lock, the token of the beat that shows the metrics
-- KEYS[2] figures    hash of what was counted since the last call
-- KEYS[3] totals     hash of what was ever counted
-- KEYS[4] minutes    hash of the minutes of the last hour
-- KEYS[5] labels     hash of the labels by their ids
-- ARGV[1] token      the caller's
-- ARGV[2] teller_ms  for how long the caller goes on to be the one that shows the metrics; 0: the lock says who leads
-- ARGV[3..] new labels, two for each: their id, and JSON
--
-- Returns {status, now, taken}
--   status  'ok', or 'lost' when the token is another one (then nothing was taken)
--   now     the server's clock, UNIX seconds
--   taken   fields and numbers, by turns
local lock, figures, totals, minutes, labels = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, teller_ms = ARGV[1], tonumber(ARGV[2])

local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
for place = 3, #ARGV, 2 do redis.call('HSETNX', labels, ARGV[place], ARGV[place + 1]) end
local holder = redis.call('GET', lock)
if teller_ms > 0 and (not holder or holder == token) then
  redis.call('SET', lock, token, 'PX', teller_ms)
elseif holder ~= token then
  return {'lost', now, {}}
end

if teller_ms == 0 and redis.call('HGET', totals, 'leader') ~= token then
  redis.call('HSET', totals, 'leader', token)
  redis.call('HINCRBY', figures, ':led', 1)
end

local taken = redis.call('HGETALL', figures)
if #taken == 0 then return {'ok', now, taken} end
local number = math.floor(tonumber(time[1]) / 60)
local slot = tostring(number % 60)
local is_read, minute = pcall(cjson.decode, redis.call('HGET', minutes, slot) or '')
if not (is_read and type(minute) == 'table' and minute.minute == number and type(minute.counted) == 'table') then
  minute = {minute = number, counted = {}}
end
for place = 1, #taken, 2 do
  local field, amount = taken[place], string.match(taken[place + 1], '^%-?%d+$')
  local word = string.match(field, ':(.*)$')
  if amount and word then  -- others may have written anything
    redis.pcall('HINCRBY', totals, field, amount)
    minute.counted[word] = (tonumber(minute.counted[word]) or 0) + tonumber(amount)
  end
end
redis.call('HSET', minutes, slot, cjson.encode(minute))
redis.call('DEL', figures)
return {'ok', now, taken}
