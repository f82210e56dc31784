-- hold_lock(lock, mark, token, lock_ms): the fence in front of every script by which the scheduler writes; not a script
-- of its own, but put in front of those that need it.
-- Returns 'ok' when the caller may write: no lock is configured (token ''), or the caller holds it (it is renewed);
-- 'retaken' when the caller may write, as the lock was gone and has been taken back; 'lost' when another token holds
-- it, or the mark says that the caller has released it, so that the caller must not write.
-- The lock is taken back for 10 seconds at most, and the caller renews it at once. This may be the last command of a
-- beat that has crashed, and arrive late; nobody would renew or release the lock then.
local function hold_lock(lock, mark, token, lock_ms)
  if token == '' then return 'ok' end
  local holder = redis.call('GET', lock)
  if holder and holder ~= token then return 'lost' end
  if holder then
    redis.call('SET', lock, token, 'PX', lock_ms)
    return 'ok'
  end
  if redis.pcall('GET', mark) == token then return 'lost' end -- a late command of a beat that has ended
  redis.call('SET', lock, token, 'PX', math.min(tonumber(lock_ms), 10000))
  return 'retaken'
end

