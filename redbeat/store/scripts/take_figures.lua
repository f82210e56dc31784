-- take_figures: add what was counted since the last call to the totals and to the minute, and return it: once, whoever
-- asks. Labels that are new are kept. What was counted under labels that nobody has stored is left for the next call, its
-- field behind a '?', and then counted under those of all others, so that nothing is lost with a beat that dies.
--
-- Uses check_layout, clock
-- KEYS lock        the leader's token; where there is no lock, the token of the beat that shows the metrics
-- KEYS figures     hash of what was counted since the last call
-- KEYS totals      hash of what was ever counted
-- KEYS minutes     hash of the minutes of the last hour
-- KEYS labels      hash of the labels by their ids
-- ARGV token       the caller's
-- ARGV teller_ms   for how long the caller goes on to be the one that shows the metrics; 0: the lock says who leads
-- ARGV new_labels  ids of labels that are new to JSON
--
-- Returns {status, now, taken, unknown}
--   status  'ok', or 'lost' when the token is another one (then nothing was taken)
--   now     the server's clock, UNIX seconds
--   taken   fields and numbers, by turns
--   unknown  the ids of labels that aren't stored
for id, text in pairs(new_labels) do redis.call('HSETNX', labels, id, text) end
local holder = redis.call('GET', lock)
if teller_ms > 0 and (not holder or holder == token) then
  redis.call('SET', lock, token, 'PX', teller_ms)
elseif holder ~= token then
  return {'lost', now, {}, {}}
end

if teller_ms == 0 and redis.call('HGET', totals, 'leader') ~= token then
  redis.call('HSET', totals, 'leader', token)
  redis.call('HINCRBY', figures, ':led', 1)
end

-- with one long field a hash isn't searched from its beginning for each of its fields, however few there are
local long_field = '- what was counted since beat has looked; in a hash with so long a field each is found at once -'
local found = redis.call('HGETALL', figures)
if #found == 0 or (#found == 2 and found[1] == long_field) then return {'ok', now, {}, {}} end
local number = math.floor(tonumber(time[1]) / 60)
local slot = tostring(number % 60)
local is_read, minute = pcall(cjson.decode, redis.call('HGET', minutes, slot) or '')
local is_same = is_read and type(minute) == 'table' and minute.minute == number and type(minute.counted) == 'table'
local counted = {}
for word, amount in pairs(is_same and minute.counted or {}) do  -- others may have written anything
  local is_finite = type(amount) == 'number' and math.abs(amount) < 1e15
  if type(word) == 'string' and is_finite then counted[word] = amount end
end

local known = {[''] = true}
local sums, left, unknown = {}, {}, {}
for place = 1, #found, 2 do
  local field, amount = found[place], string.match(found[place + 1], '^%d+$')
  local mark, id, words = string.match(field, '^(%??)([^:]*):([%l_/%d+]+)$')
  local is_figure = words and amount and #amount < 18
  if is_figure and known[id] == nil then
    known[id] = redis.call('HGET', labels, id) ~= false
    if not known[id] then unknown[#unknown + 1] = id end
  end
  if is_figure and mark == '' and not known[id] then  -- the beat that has given the labels stores them next
    left[#left + 1], left[#left + 2] = '?' .. field, amount
  elseif is_figure then  -- if they aren't known yet, no beat has them, or their entry is gone
    for word in string.gmatch(words, '[^+]+') do
      field = (known[id] and id or '') .. ':' .. word
      sums[field] = (sums[field] or 0) + tonumber(amount)
      local sum = (counted[word] or 0) + tonumber(amount)
      counted[word] = sum < 1e15 and sum or nil
    end
  end
end
redis.call('HSET', minutes, slot, cjson.encode({minute = number, counted = counted}))
local taken = {}
for field, sum in pairs(sums) do
  local amount = string.format('%.0f', sum)
  local reply = redis.pcall('HINCRBY', totals, field, amount)
  local is_garbage = type(reply) == 'table' and string.find(reply.err, 'not an integer', 1, true)
  if is_garbage then redis.pcall('HSET', totals, field, amount) end
  taken[#taken + 1], taken[#taken + 2] = field, amount
end
redis.call('DEL', figures)
redis.call('HSET', figures, long_field, '')
for place = 1, #left, 2 do redis.call('HINCRBY', figures, left[place], left[place + 1]) end
return {'ok', now, taken, unknown}
