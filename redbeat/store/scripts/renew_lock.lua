-- renew_lock: let the lock live for its full time from now on, and store when its holder last did something.
--
-- KEYS[1] tick      when the leader's last tick was
-- KEYS[2] lock      the leader's token
-- KEYS[3] mark      who has released the lock (the lock's key again when nothing says so)
-- ARGV[1] token     the caller's token; '': no lock is configured, so nothing is written
-- ARGV[2] lock_ms   time to live the lock is renewed to, milliseconds
-- ARGV[3] idle_ms   how long ago the last tick was, milliseconds
-- ARGV[4] obstacle  why the holder cannot send, a sentence; '': it can
--
-- Returns 'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
-- holds it (then nothing was written)
local tick, lock, mark = KEYS[1], KEYS[2], KEYS[3]
local token, lock_ms, idle_ms, obstacle = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local status = hold_lock(lock, mark, token, lock_ms)
if status == 'lost' or token == '' then return status end -- without a lock there is none to renew

local time = redis.call('TIME')
local at_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) - tonumber(idle_ms)
local ticked = string.format('%.3f', at_ms / 1000)
if obstacle ~= '' then ticked = ticked .. ' ' .. obstacle end
redis.call('SET', tick, ticked, 'PX', lock_ms)
return status
