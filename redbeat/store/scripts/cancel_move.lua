-- cancel_move: note that nothing of a move will be written to a part, unless it was: for who hasn't got the reply to it.
--
-- KEYS[1] mover    token of who moves entries out of this part, and into it
-- KEYS[2] arrived  hash: id of each move that was written here, to a JSON array of the names that couldn't be
-- ARGV[1] token    the caller's
-- ARGV[2] move     the id of the move
-- ARGV[3..] names  how many entries it has, and their names
--
-- Returns the names of those that weren't written, and won't be
local mover, arrived = KEYS[1], KEYS[2]
local token, move = ARGV[1], ARGV[2]

check_mover(mover, token)
local before, names = redis.call('HGET', arrived, move), {}
if before then return cjson.decode(before) end
for i, one in ipairs(take_list(3, 1)) do names[i] = one[1] end
redis.call('HDEL', arrived, move)  -- first, as this needs no memory, and what comes after it isn't refused for want of it
redis.call('HSET', arrived, move, cjson.encode(names))
return names
