-- hold_lock(lock, token, lock_ms): the fence before every write of the scheduler; not a script of its own,
-- but put in front of those that need it.
-- Returns 'ok' when the caller may write: no lock is configured (token ''), or it is the holder (the lock is
-- renewed); 'retaken' when it may because the lock was gone and nobody's (it is taken back); 'lost' when
-- another token holds it.
-- It is taken back for 10 seconds at the most, and the caller renews it at once: this may be the last command
-- of a beat that has released its lock and ended, and arrive late. Nobody would renew or release it then.
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

