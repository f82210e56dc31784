-- hold_lock(lock, token, lock_ms): the fence before every write of the scheduler; not a script of its own,
-- but put in front of those that need it.
-- Returns 'ok' when the caller may write: no lock is configured (token ''), or it is the holder (the lock is
-- renewed); 'retaken' when it may because the lock was gone and nobody's (it is taken back); 'lost' when
-- another token holds it.
local function hold_lock(lock, token, lock_ms)
  if token == '' then return 'ok' end
  local holder = redis.call('GET', lock)
  if holder and holder ~= token then return 'lost' end
  redis.call('SET', lock, token, 'PX', lock_ms)
  return holder and 'ok' or 'retaken'
end

