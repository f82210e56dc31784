-- hold_lock(lock, token, lock_ms): the fence before every write of the scheduler; not a script of its own,
-- but put in front of those that need it.
-- Returns true when the caller may write: no lock is configured (token ''), it is the holder (the lock is
-- renewed), or the lock is gone and nobody's (it is taken back). Returns false when another token holds it.
local function hold_lock(lock, token, lock_ms)
  if token == '' then return true end
  local holder = redis.call('GET', lock)
  if holder and holder ~= token then return false end
  redis.call('SET', lock, token, 'PX', lock_ms)
  return true
end

