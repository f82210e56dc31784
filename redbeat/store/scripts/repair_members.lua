-- repair_members: remove members of the schedule that have no entry, and add entries that aren't members.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2..] entries  the entries' keys
-- ARGV[1] wake       channel on which the change is announced
-- ARGV[2..] two for each entry:
--   member           the member of the schedule: its key or its bare name
--   score            '': remove the member if its key doesn't exist; else add it with this score, if its key is a hash
--                    and it isn't in the schedule
--
-- Returns a list: for each entry 1 when that was done, 0 when it has changed meanwhile and was left alone
local schedule = KEYS[1]
local wake = ARGV[1]

local results, is_announced = {}, false
for i = 2, #KEYS do
  local key, at = KEYS[i], 2 + (i - 2) * 2
  local member, score = ARGV[at], ARGV[at + 1]
  local kind, done = redis.call('TYPE', key).ok, 0
  if score == '' and kind == 'none' then
    done = redis.call('ZREM', schedule, member)
  elseif score ~= '' and kind == 'hash' then
    done = redis.call('ZADD', schedule, 'NX', score, member)
    is_announced = is_announced or done == 1
  end
  results[i - 1] = done
end
-- without the right to publish the change is made all the same, and noticed a little later
if is_announced then redis.pcall('PUBLISH', wake, 'repaired') end
return results
