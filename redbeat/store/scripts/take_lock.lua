-- take_lock: take a lock that is free, or whose holder is silent.
--
-- Uses check_layout
-- KEYS lock      the leader's token
-- KEYS mark      who has released the lock (the lock's key again when nothing says so)
-- ARGV token     the caller's token
-- ARGV taken_ms  time to live, milliseconds
-- ARGV silent    the token of a holder that may be replaced, '' for none
-- ARGV rest_ms   how long the silent holder's lock lives if it hasn't been renewed, milliseconds
-- ARGV slack_ms  by how much longer or shorter it may live and still count as not renewed, milliseconds
--
-- Returns 1: the caller holds the lock; 0: another one does, or the caller has released it already.
local holder = redis.call('GET', lock)
if holder and holder == silent then
  local is_renewed = math.abs(redis.call('PTTL', lock) - rest_ms) > slack_ms
  if is_renewed then return 0 end
elseif holder and holder ~= token then -- the caller's own token is there when an earlier reply was lost
  return 0
elseif not holder and redis.pcall('GET', mark) == token then -- a late command of a beat that has ended
  return 0
end
redis.call('SET', lock, token, 'PX', taken_ms)
return 1
