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
local digits = {}
for i, key in ipairs(entries) do
  local hash, lost, is_gone = running[i], {members[i]}, false
  local is_hash = redis.call('TYPE', hash).ok == 'hash'
  if members[i] ~= '' then
    local task_id = string.match(members[i], '^([^%z]*)%z')
    is_gone = not (task_id and is_hash and redis.call('HGET', hash, task_id))
  else
    lost, is_gone = {}, is_hash and redis.call('EXISTS', key) == 0
    local found = is_gone and redis.call('HGETALL', hash) or {}
    for place = 1, #found, 2 do lost[#lost + 1] = found[place] .. '\0' .. hash end
  end
  for _, member in ipairs(lost) do
    local score = redis.call('ZSCORE', deadlines, member)
    is_gone = is_gone and (not score or tonumber(score) <= latest)
  end
  local removed = is_gone and members[i] == '' and redis.call('DEL', hash) or 0
  for _, member in ipairs(is_gone and lost or {}) do removed = removed + redis.call('ZREM', deadlines, member) end
  digits[i] = removed > 0 and '1' or '0'
end
return table.concat(digits)
