-- bring_back: put all entries back into the schedule that were taken out for celery-redbeat 2.x.
--
-- Uses check_layout, hold_lock
-- KEYS schedule    zset of entry keys, scored by due time
-- KEYS downgraded  hash: entry's key to its score, ' static' after it where its name stood among the statics
-- KEYS statics     set of the names of entries that came from beat_schedule
-- ARGV prefix      what every entry's key starts with
-- Reads whether these entries' hashes exist; their keys are in the hash. An entry that was deleted meanwhile is
-- forgotten; one that was saved again keeps its newer score. One whose value isn't a valid score is due at once.
--
-- Returns {status, returned, gone, scoreless}
--   status    'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--             holds it (then nothing was written)
--   returned  how many entries are in the schedule again
--   gone      how many were deleted meanwhile
--   scoreless  the keys of those that are back without their old score
local status = hold_lock(lock, mark, token, lock_ms)
if status == 'lost' then return {status, 0, 0, {}} end
if redis.call('TYPE', downgraded).ok ~= 'hash' then return {status, 0, 0, {}} end

local returned, gone, scoreless = 0, 0, {}
local remembered = redis.call('HGETALL', downgraded)
local is_set = redis.call('TYPE', statics).ok
is_set = is_set == 'set' or is_set == 'none'
for i = 1, #remembered, 2 do
  local key, text = remembered[i], remembered[i + 1]
  local score, static = string.match(text, '^(%S+)( ?%l*)$')
  -- other keys may be out of reach: another slot, an ACL
  if string.sub(key, 1, #prefix) == prefix and redis.call('EXISTS', key) == 1 then
    -- Lua takes 'nan', '0x1p4' and '1e999' for numbers, too, which a zset refuses
    local number = score and string.match(score, '^[-+%d.eE]+$') and tonumber(score)
    local is_score = score == 'inf' or (number and math.abs(number) < math.huge)
    if not is_score then scoreless[#scoreless + 1] = key end
    redis.call('ZADD', schedule, 'NX', is_score and score or 0, key)
    if static == ' static' and is_set then redis.call('SADD', statics, string.sub(key, #prefix + 1)) end
    returned = returned + 1
  else
    gone = gone + 1
  end
end
redis.call('DEL', downgraded)
return {status, returned, gone, scoreless}
