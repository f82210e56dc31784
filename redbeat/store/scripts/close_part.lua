-- close_part: remove what nobody needs any more in a part of the schedule when all entries have moved.
--
-- Uses check_layout, check_mover
-- KEYS mover      token of who moves entries out of this part, and into it
-- KEYS removed[]  what is removed
-- ARGV token      the caller's
--
-- Returns how many keys there were

local count = 0
for _, key in ipairs(removed) do count = count + redis.call('UNLINK', key) end
return count
