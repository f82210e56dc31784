-- hold_lock: the fence in front of every script by which the scheduler writes; not a script of its own.
-- status is 'ok' when the caller may write: no lock is configured (token ''), or the caller holds it (it is renewed);
-- 'retaken' when the caller may write, as the lock was gone and has been taken back; 'lost' when another token holds
-- it, or the mark says that the caller has released it, so that the caller must not write.
-- The lock is taken back for 10 seconds at most, and the caller renews it at once. This may be the last command of a
-- beat that has crashed, and arrive late; nobody would renew or release the lock then.
local status, holder = 'ok', token ~= '' and redis.call('GET', lock)
if token == '' or holder == token then
  if holder then redis.call('SET', lock, token, 'PX', lock_ms) end
elseif holder or redis.pcall('GET', mark) == token then  -- the latter is a late command of a beat that has ended
  status = 'lost'
else
  status = 'retaken'
  redis.call('SET', lock, token, 'PX', math.min(tonumber(lock_ms), 10000))
end

