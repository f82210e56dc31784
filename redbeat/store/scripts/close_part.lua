-- close_part: remove what nobody needs any more in a part of the schedule when all entries have moved.
--
-- KEYS[1] mover       token of who moves entries out of this part, and into it
-- KEYS[2..] removed   what is removed
-- ARGV[1] token       the caller's
--
-- Returns how many keys there were
local mover = KEYS[1]
local token = ARGV[1]

check_mover(mover, token)
local count = 0
for i = 2, #KEYS do count = count + redis.call('UNLINK', KEYS[i]) end
return count
