-- check_mover(mover, token): ends the script if another one moves entries of this part by now.
-- rests_of(name): the usual keys that are kept for the entry called name, without the prefix; as in redbeat/keys.py. A name
-- with a colon in front is that of a key of the part's own, which is moved in the same way.
-- Not scripts of their own, but put in front of those that move entries.
local function check_mover(mover, token)
  if redis.call('GET', mover) ~= token then error('MOVER Another process moves the entries of this part by now.') end
end

local function rests_of(name)
  if string.sub(name, 1, 1) == ':' then return {name} end
  local rests = {
    name, ':history:' .. name, ':backfilled:' .. name, ':backfilling:' .. name, ':running:' .. name, ':failing:' .. name,
  }
  if string.sub(name, 1, 6) == 'later:' then rests[#rests + 1] = ':later:' .. string.sub(name, 7) end
  return rests
end

