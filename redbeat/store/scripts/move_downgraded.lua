-- move_downgraded: take entries out of the schedule that celery-redbeat 2.x can't run, and store their due times, if no
-- beat of version 3 leads; or put them back.
--
-- Uses check_layout, hold_lock, entry_texts, read_entry, match_entry
-- KEYS schedule    zset of entry keys, scored by due time
-- KEYS downgraded  hash: entry's key to its score, ' static' after it where its name stood among the statics
-- KEYS statics     set of the names of entries that came from beat_schedule
-- KEYS entries[]   the entries' keys
-- ARGV beginning   how the token of a leader of version 3 begins, which keeps entries from being taken out; '': none does
-- ARGV is_back     they are put back: one that was deleted meanwhile is forgotten, one that was saved again keeps its
--                  newer score
-- ARGV rows        of each entry:
--   name         its name
--   member       of the schedule, its key or its bare name, and
--   read, read_meta  what the caller has read, as match_entry has it, where it is taken out
--   score, is_static  what it had, where it is put back
--
-- Returns {status, token, results}
--   status   'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--            holds it (then nothing was written)
--   token    '', or the token of a leader of version 3 (then nothing was written)
--   results  for each entry 1 when it was moved, 0 when it has changed or is gone
local leader = beginning ~= '' and redis.call('GET', lock) or ''
local is_led = leader ~= '' and string.sub(leader, 1, #beginning) == beginning
if status == 'lost' or is_led then return {status, leader, {}} end

local function take_out(key, row)
  local score, is_same, kind = redis.call('ZSCORE', schedule, row.member), match_entry(key, row)
  if not score or not is_same or kind == 'none' then return 0 end
  redis.call('HSET', downgraded, key, score)
  redis.call('ZREM', schedule, row.member)
  if redis.call('SREM', statics, row.name) == 1 then redis.call('HSET', downgraded, key, score .. ' static') end
  return 1
end

local function put_back(key, row)
  local exists = redis.call('EXISTS', key)
  if exists == 1 then redis.call('ZADD', schedule, 'NX', row.score, key) end
  if exists == 1 and row.is_static then redis.pcall('SADD', statics, row.name) end  -- else that isn't a set
  redis.call('HDEL', downgraded, key)
  return exists
end

-- no name is ''; this fails before the first write if the key isn't a set
if not is_back then redis.call('SREM', statics, '') end
local results, move = {}, is_back and put_back or take_out
for i, key in ipairs(entries) do results[i] = move(key, rows[i]) end
return {status, '', results}
