-- change_owned: add names to those that an owner has in a part of the schedule, or remove them, while entries move.
--
-- Uses check_layout, check_mover
-- KEYS mover   token of who moves entries out of this part, and into it
-- KEYS owned   set of the names that an owner has applied from a file
-- ARGV token   the caller's
-- ARGV change  'add' or 'remove'
-- ARGV names
--
-- Returns how many were added, or removed

local count = 0
for _, name in ipairs(names) do
  count = count + (change == 'add' and redis.call('SADD', owned, name) or redis.call('SREM', owned, name))
end
return count
