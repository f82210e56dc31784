-- forget_runs: remove what is kept of runs in progress that nobody looks after any more.
--
-- Uses check_layout
-- KEYS deadlines  zset of when beat must look at each run in progress
-- KEYS entries[]  the entries' keys
-- KEYS running[]  one for each entry: the hash of its runs in progress
-- ARGV latest     a run whose deadline is later is looked after; UNIX seconds
-- ARGV members    of each a member of deadlines, removed if there is no such run; '' for the whole hash, removed if
--                 there is no such entry
--
-- Returns a text of digits, for each 1 when it was removed, else 0
local function is_old(member)
  local score = redis.call('ZSCORE', deadlines, member)
  return not score or tonumber(score) <= latest
end

local function forget_deadline(running, member)
  local task_id = string.match(member, '^([^%z]*)%z')
  local is_run = task_id and redis.call('TYPE', running).ok == 'hash' and redis.call('HGET', running, task_id)
  return not is_run and is_old(member) and redis.call('ZREM', deadlines, member) == 1
end

local function forget_all(key, running)
  if redis.call('EXISTS', key) == 1 or redis.call('TYPE', running).ok ~= 'hash' then return false end
  local members = {}
  local found = redis.call('HGETALL', running)
  for i = 1, #found, 2 do
    members[#members + 1] = found[i] .. '\0' .. running
    if not is_old(members[#members]) then return false end
  end
  redis.call('DEL', running)
  for _, member in ipairs(members) do redis.call('ZREM', deadlines, member) end
  return true
end

local removed = {}
for i, key in ipairs(entries) do
  local member = members[i]
  local is_gone = member == '' and forget_all(key, running[i]) or member ~= '' and forget_deadline(running[i], member)
  removed[i] = is_gone and '1' or '0'
end
return table.concat(removed)
