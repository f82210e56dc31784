-- renew_lock: let the lock live for its full time from now on, and store when its holder last did something.
--
-- Uses check_layout, clock, hold_lock
-- KEYS tick      when the leader's last tick was
-- ARGV idle_ms   how long ago the last tick was, milliseconds
-- ARGV obstacle  why the holder cannot send, a sentence; '': it can
--
-- Returns 'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
-- holds it (then nothing was written)
if status == 'lost' or token == '' then return status end -- without a lock there is none to renew

local ticked = string.format('%.3f', tonumber(now) - idle_ms / 1000)
if obstacle ~= '' then ticked = ticked .. ' ' .. obstacle end
redis.call('SET', tick, ticked, 'PX', lock_ms)
return status
