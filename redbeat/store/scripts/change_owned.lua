-- change_owned: add names to those that an owner has in a part of the schedule, or remove them, while entries move.
--
-- KEYS[1] mover   token of who moves entries out of this part, and into it
-- KEYS[2] owned   set of the names that an owner has applied from a file
-- ARGV[1] token   the caller's
-- ARGV[2] change  'add' or 'remove'
-- ARGV[3..] names  how many there are, and they
--
-- Returns how many were added, or removed
local mover, owned = KEYS[1], KEYS[2]
local token, change = ARGV[1], ARGV[2]

check_mover(mover, token)
local count = 0
for _, one in ipairs(take_list(3, 1)) do
  if change == 'add' then
    count = count + redis.call('SADD', owned, one[1])
  else
    count = count + redis.call('SREM', owned, one[1])
  end
end
return count
