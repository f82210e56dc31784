-- read_events: read what has happened since the last event that was told of, for the beat that tells of it.
--
-- KEYS[1] events    stream of what has happened
-- KEYS[2] told      the id of the last event that was told of; while somebody is at it also who, and until when
-- KEYS[3] lock      the leader's token (the stream's key again when no lock is configured)
-- ARGV[1] token     the caller's token, '' when no lock is configured
-- ARGV[2] teller    who asks; with a lock the leader tells, whoever was at it before
-- ARGV[3] claim_ms  for how long nobody else tells of what is returned, milliseconds
-- ARGV[4] life_ms   how long it is remembered what was told, milliseconds
-- ARGV[5] count     how many events are returned at most
--
-- Returns {told, rows}
--   told  the id of the last event that was told of; '': the caller may not tell now
--   rows  the events after that, each {id, {field, value, ...}}; where nothing is remembered, or what is ahead of all events,
--         there are none
local events, told, lock = KEYS[1], KEYS[2], KEYS[3]
local token, teller, claim_ms, life_ms, count = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

if token ~= '' and redis.call('GET', lock) ~= token then return {'', {}} end
local id, other, till = string.match(redis.call('GET', told) or '', '^(%d+%-%d+) ?(%S*) ?(%S*)$')
if id and (#string.match(id, '^%d+') > 19 or #string.match(id, '%d+$') > 19) then id = nil end  -- of 64 bits each
local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)
last = last[1] and last[1][1] or '0-0'
-- ahead, if the stream was deleted and the server's clock set back, or others have written it
local is_ahead = id and id ~= last and #redis.call('XREVRANGE', events, '+', id, 'COUNT', 1) == 0
if not id or is_ahead then
  redis.call('SET', told, last, 'PX', life_ms)
  return {last, {}}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local is_others = other ~= '' and other ~= teller
local seconds_left = (tonumber(till) or 0) - now
if token == '' and is_others and seconds_left > 0 and seconds_left < 2 * claim_ms / 1000 then return {'', {}} end

local found = redis.call('XREAD', 'COUNT', count, 'STREAMS', events, id)
if found then
  local claim = string.format('%s %s %.3f', id, teller, now + claim_ms / 1000)
  redis.call('SET', told, claim, 'PX', life_ms)
  return {id, found[1][2]}
end
if redis.call('PTTL', told) < tonumber(life_ms) / 2 then redis.call('SET', told, id, 'PX', life_ms) end
return {id, {}}
