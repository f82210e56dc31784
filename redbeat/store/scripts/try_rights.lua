-- try_rights(key): fail if this user may not do all that moving an entry takes, or if there is no memory: what a failing
-- script has written stays written, so that has to show first. For a moment something stands under key.
-- Not a script of its own, but put in front of those that move entries.
local function try_rights(key)
  if redis.call('EXISTS', key) == 1 then redis.call('UNLINK', key) end  -- who had fewer rights has left it
  for _, words in ipairs({  -- SADD first of all, as it is refused if there is no memory
    {'SADD', 'a'}, {'SISMEMBER', 'a'}, {'SREM', 'a'}, {'ZADD', 1, 'a'}, {'ZREM', 'a'}, {'HSETNX', 'a', ''}, {'HDEL', 'a'},
    {'HSET', 'a', ''}, {'HGET', 'a'}, {'HMGET', 'a'}, {'HEXISTS', 'a'}, {'HKEYS'}, {'DUMP'}, {'PTTL'}, {'RENAME', key .. ':'},
  }) do
    redis.call(words[1], key, unpack(words, 2))
  end
  redis.call('UNLINK', key .. ':')
end

