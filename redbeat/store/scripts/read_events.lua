-- read_events: read what has happened since the last event that was told of, for the beat that tells of it.
--
-- Uses check_layout, clock
-- KEYS events       stream of what has happened
-- KEYS events_read  the id of the last event that was told of; while somebody is at it also who, and until when
-- KEYS lock         the leader's token (the stream's key again when no lock is configured)
-- ARGV token        the caller's token, '' when no lock is configured
-- ARGV teller       who asks; with a lock the leader tells, whoever was at it before
-- ARGV claim_ms     for how long nobody else tells of what is returned, milliseconds
-- ARGV life_ms      how long it is remembered what was told, milliseconds
-- ARGV count        how many events are returned at most
--
-- Returns {told, rows}
--   told  the id of the last event that was told of; '': the caller may not tell now
--   rows  the events after that, each {id, {field, value, ...}}; where nothing is remembered, or what is ahead of all events,
--         there are none
if token ~= '' and redis.call('GET', lock) ~= token then return {'', {}} end
local id, other, till = string.match(redis.call('GET', events_read) or '', '^(%d+%-%d+) ?(%S*) ?(%S*)$')
if id and (#string.match(id, '^%d+') > 19 or #string.match(id, '%d+$') > 19) then id = nil end  -- of 64 bits each
local last = (redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1] or {'0-0'})[1]
-- ahead, if the stream was deleted and the server's clock set back, or others have written it
local is_ahead = id and id ~= last and #redis.call('XREVRANGE', events, '+', id, 'COUNT', 1) == 0
if not id or is_ahead then
  redis.call('SET', events_read, last, 'PX', life_ms)
  return {last, {}}
end
local is_others = other ~= '' and other ~= teller
local seconds_left = (tonumber(till) or 0) - tonumber(now)
if token == '' and is_others and seconds_left > 0 and seconds_left < 2 * claim_ms / 1000 then return {'', {}} end

local found = redis.call('XREAD', 'COUNT', count, 'STREAMS', events, id)
if found then
  local claim = string.format('%s %s %.3f', id, teller, tonumber(now) + claim_ms / 1000)
  redis.call('SET', events_read, claim, 'PX', life_ms)
  return {id, found[1][2]}
end
if redis.call('PTTL', events_read) < life_ms / 2 then redis.call('SET', events_read, id, 'PX', life_ms) end
return {id, {}}
