-- take_lock: become the holder of a lock that is free, or whose holder has fallen silent.
--
-- KEYS[1] lock  the leader's token
-- ARGV[1] token       the caller's
-- ARGV[2] taken_ms    time to live, milliseconds
-- ARGV[3] silent      the token of a holder that may be replaced, '' for none
-- ARGV[4] expires_ms  when the silent holder's lock ends as long as it isn't renewed, milliseconds since 1970
-- ARGV[5] slack_ms    so much that time may be another one and still count as not renewed, milliseconds
--
-- Returns 1: the caller holds the lock; 0: another one does.
local lock = KEYS[1]
local token, taken_ms, silent, expires_ms, slack_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local holder = redis.call('GET', lock)
if holder and holder == silent and holder ~= token then
  local time, rest_ms = redis.call('TIME'), redis.call('PTTL', lock)
  local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  if math.abs(now_ms + rest_ms - tonumber(expires_ms)) <= tonumber(slack_ms) then holder = false end
end
-- the caller's own token stands there when the reply to an earlier call was lost
if holder and holder ~= token then return 0 end
redis.call('SET', lock, token, 'PX', taken_ms)
return 1
