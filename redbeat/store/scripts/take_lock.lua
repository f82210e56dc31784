-- take_lock: take a lock that is free, or whose holder is silent.
--
-- KEYS[1] lock      the leader's token
-- KEYS[2] mark      who has released the lock (the lock's key again when nothing says so)
-- ARGV[1] token     the caller's token
-- ARGV[2] taken_ms  time to live, milliseconds
-- ARGV[3] silent    the token of a holder that may be replaced, '' for none
-- ARGV[4] rest_ms   how long the silent holder's lock lives if it hasn't been renewed, milliseconds
-- ARGV[5] slack_ms  by how much longer or shorter it may live and still count as not renewed, milliseconds
--
-- Returns 1: the caller holds the lock; 0: another one does, or the caller has released it already.
local lock, mark = KEYS[1], KEYS[2]
local token, taken_ms, silent, rest_ms, slack_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local holder = redis.call('GET', lock)
if holder and holder == silent then
  local is_renewed = math.abs(redis.call('PTTL', lock) - tonumber(rest_ms)) > tonumber(slack_ms)
  if is_renewed then return 0 end
elseif holder and holder ~= token then -- the caller's own token is there when an earlier reply was lost
  return 0
elseif not holder and redis.pcall('GET', mark) == token then -- a late command of a beat that has ended
  return 0
end
redis.call('SET', lock, token, 'PX', taken_ms)
return 1
