-- read_scores(schedule, members): the scores of members of the schedule, in their order, false for one that isn't in it.
-- Not a script of its own, but put in front of those that need it.
local function read_scores(schedule, members)
  return #members > 0 and redis.call('ZMSCORE', schedule, unpack(members)) or {}
end

