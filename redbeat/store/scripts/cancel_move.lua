-- cancel_move: note that nothing of a move will be written to a part, unless it was: for who hasn't got the reply to it.
--
-- Uses check_layout, check_mover
-- KEYS mover    token of who moves entries out of this part, and into it
-- KEYS arrived  hash: id of each move that was written here, to a JSON array of the names that couldn't be
-- ARGV token    the caller's
-- ARGV move     the id of the move
-- ARGV names    of its entries
--
-- Returns the names of those that weren't written, and won't be

local before = redis.call('HGET', arrived, move)
if before then return cjson.decode(before) end
redis.call('HDEL', arrived, move)  -- first, as this needs no memory, and what comes after it isn't refused for want of it
redis.call('HSET', arrived, move, cjson.encode(names))
return names
