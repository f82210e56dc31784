-- read_scores(schedule, members): the scores of members of the schedule, in their order, false for one that isn't in it.
-- Not a script of its own, but put in front of those that need it.
-- One question for many, if the server tells that the user may ask it: it isn't among the rights that are documented,
-- and the server may not have that command.
local function read_scores(schedule, members)
  local scores, is_known, may_ask = {}, pcall(redis.acl_check_cmd, 'ZMSCORE', schedule)
  if #members < 2 or not (is_known and may_ask) then
    for place, member in ipairs(members) do scores[place] = redis.call('ZSCORE', schedule, member) end
    return scores
  end
  return redis.call('ZMSCORE', schedule, unpack(members))
end

