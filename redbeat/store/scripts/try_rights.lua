-- try_rights(key): fail if this user may not do all that moving an entry takes, or if there is no memory: what a failing script
-- has written stays written, so that has to show first. For a moment something stands under key.
-- Not a script of its own, but put in front of those that move entries.
local function try_rights(key)
  if redis.call('EXISTS', key) == 1 then redis.call('UNLINK', key) end  -- who had fewer rights has left it
  redis.call('SADD', key, 'a')  -- first of all, as this is refused if there is no memory
  redis.call('SISMEMBER', key, 'a')
  redis.call('SREM', key, 'a')
  redis.call('ZADD', key, 1, 'a')
  redis.call('ZREM', key, 'a')
  redis.call('HSETNX', key, 'a', '')
  redis.call('HDEL', key, 'a')
  redis.call('HSET', key, 'a', '')
  for _, command in ipairs({'HGET', 'HMGET', 'HEXISTS'}) do redis.call(command, key, 'a') end
  for _, command in ipairs({'HKEYS', 'DUMP'}) do redis.call(command, key) end
  redis.call('PTTL', key)
  redis.call('RENAME', key, key .. ':')
  redis.call('UNLINK', key .. ':')
end

