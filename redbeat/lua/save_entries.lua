-- save_entries: store entries whose stored form is still what the caller read.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] lock       the leader's token (the schedule's key again when the caller needs none)
-- KEYS[3..] entries  the entries' keys
-- ARGV[1] token      '' for an application; the scheduler's token when beat stores its statics
-- ARGV[2] lock_ms    time to live the lock is renewed to, milliseconds
-- ARGV[3] wake       channel that is told, '' for none
-- ARGV[4..] six for each entry:
--   read_definition  the definition that the caller read, '' for none
--   read_meta        the meta that the caller read, '' for none
--   definition       '' to leave it
--   meta             '' to leave it
--   score            '' to leave it, else the next due time
--   must_exist       '1': only when the entry exists
--
-- Returns {status, results}
--   status   'ok', 'retaken' when the lock was gone and is the caller's again, or 'lost' when another token
--            holds it (then nothing was written)
--   results  for each entry 1 saved, 0 changed since it was read, -1 no such entry, -2 the key is no hash
local schedule, lock = KEYS[1], KEYS[2]
local token, lock_ms, wake = ARGV[1], ARGV[2], ARGV[3]

local status = hold_lock(lock, token, lock_ms)
if status == 'lost' then return {status, {}} end

local results, has_saved = {}, false
for i = 3, #KEYS do
  local key, at = KEYS[i], 4 + (i - 3) * 6
  local read_definition, read_meta = ARGV[at], ARGV[at + 1]
  local definition, meta, score, must_exist = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]

  local kind, result = redis.call('TYPE', key).ok, 1
  if kind == 'none' and must_exist == '1' then
    result = -1
  elseif kind ~= 'none' and kind ~= 'hash' then
    result = -2
  else
    local stored = redis.call('HMGET', key, 'definition', 'meta')
    if (stored[1] or '') ~= read_definition or (stored[2] or '') ~= read_meta then result = 0 end
  end
  if result == 1 then
    if definition ~= '' then
      redis.call('HSET', key, 'definition', definition)
      redis.call('HDEL', key, 'error')
    end
    if meta ~= '' then redis.call('HSET', key, 'meta', meta) end
    if score ~= '' then redis.call('ZADD', schedule, score, key) end
    has_saved = true
  end
  results[i - 2] = result
end
-- a wake-up only makes it quicker: who may not publish may still save
if has_saved and wake ~= '' then redis.pcall('PUBLISH', wake, 'saved') end
return {status, results}
