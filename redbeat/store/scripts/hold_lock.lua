-- hold_lock(lock, token, lock_ms): the fence in front of every script by which the scheduler writes; not a script of
-- its own, but put in front of those that need it.
-- Returns 'ok' when the caller may write: no lock is configured (token ''), or the caller holds it (it is renewed);
-- 'retaken' when the caller may write, as the lock was gone and has been taken back; 'lost' when another token holds
-- it, so that the caller must not write.
-- The lock is taken back for 10 seconds at most, and the caller renews it at once. This may be the last command of a
-- beat that has released its lock and ended, and arrive late; nobody would renew or release the lock then.
local function hold_lock(lock, token, lock_ms)
  if token == '' then return 'ok' end
  local holder = redis.call('GET', lock)
  if holder and holder ~= token then return 'lost' end
  if holder then
    redis.call('SET', lock, token, 'PX', lock_ms)
    return 'ok'
  end
  redis.call('SET', lock, token, 'PX', math.min(tonumber(lock_ms), 10000))
  return 'retaken'
end

