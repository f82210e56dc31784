-- save_entries: store entries, all of them or none: only if each is still what the caller has read.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] lock       the leader's token (the schedule's key again when the caller needs none)
-- KEYS[3] mark       who has released the lock (the lock's key again when nothing says so)
-- KEYS[4..] entries  the entries' keys
-- ARGV[1] token      '' for an application; the scheduler's token when beat stores its statics
-- ARGV[2] lock_ms    time to live the lock is renewed to, milliseconds
-- ARGV[3] wake       channel on which the change is announced, '': none
-- ARGV[4..] two for each entry:
--   state       which of the states, 1 for the first
--   definition  '' to leave it
-- ARGV[..] five for each state; new entries that are saved together share a few:
--   read        what the caller read: '' for no entry, else definition, policy, revision and meta with NULs between,
--               of a long text '#' and its SHA-1; of an entry that wasn't read '=' and its bytes
--   meta        '' to leave it
--   score       '' to leave it, else the next due time
--   policy      '' to leave it, else '=' and the policy; '=' alone removes it
--   revision    '' to leave it, else another one: what was decided about the entry by now isn't recorded any more
--
-- Returns {status, changed}
--   status   'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--            holds it (then nothing was written)
--   changed  0, or which entry, counted from 1, has changed since it was read (then nothing was written)
local schedule, lock, mark = KEYS[1], KEYS[2], KEYS[3]
local token, lock_ms, wake = ARGV[1], ARGV[2], ARGV[3]

local status = hold_lock(lock, mark, token, lock_ms)
if status == 'lost' then return {status, 0} end

local states, count = {}, 0
for place = 4 + (#KEYS - 3) * 2, #ARGV, 5 do
  local read, meta, score, policy, revision = unpack(ARGV, place, place + 4)
  count = count + 1
  states[tostring(count)] = {read = read, meta = meta, score = score, policy = policy, revision = revision}
end

local states_of, is_hash = {}, {}
-- one command finds out that many new entries don't exist
local is_any_there = #KEYS > 3 and redis.call('EXISTS', unpack(KEYS, 4)) > 0
for i = 4, #KEYS do
  local key, at = KEYS[i], 4 + (i - 4) * 2
  local state = ARGV[at]
  local kind, found = is_any_there and redis.call('TYPE', key).ok or 'none', ''
  if kind == 'hash' then
    is_hash[i] = true
    if string.match(states[state].read, '^=%d+$') then
      found = '=' .. measure_entry(key)
    else
      local fields = redis.call('HMGET', key, 'definition', 'policy', 'revision', 'meta')
      found = texts_of(fields) .. '\0' .. (fields[4] or '')
    end
  end
  states_of[i] = states[state]
  local is_same = match_text(found, states_of[i].read)
  if (kind ~= 'hash' and kind ~= 'none') or not is_same then return {status, i - 3} end
end

local scored = {}
for i = 4, #KEYS do
  local key, at, meta, score = KEYS[i], 4 + (i - 4) * 2, states_of[i].meta, states_of[i].score
  local definition = ARGV[at + 1]
  if definition ~= '' and meta ~= '' then
    redis.call('HSET', key, 'definition', definition, 'meta', meta, 'meta_sha1', sha1_of_meta(meta))
  elseif definition ~= '' then
    redis.call('HSET', key, 'definition', definition)
  elseif meta ~= '' then
    redis.call('HSET', key, 'meta', meta, 'meta_sha1', sha1_of_meta(meta))
  end
  local policy, revision = states_of[i].policy, states_of[i].revision
  if policy == '=' then
    redis.call('HDEL', key, 'policy')
  elseif policy ~= '' then
    redis.call('HSET', key, 'policy', string.sub(policy, 2))
  end
  if revision ~= '' then redis.call('HSET', key, 'revision', revision) end
  if definition .. policy .. revision ~= '' and is_hash[i] then redis.call('HDEL', key, 'error') end
  if score ~= '' then
    scored[#scored + 1] = score
    scored[#scored + 1] = key
  end
end
if #scored > 0 then redis.call('ZADD', schedule, unpack(scored)) end
-- without the right to publish the change is made all the same, and noticed a little later
if wake ~= '' then redis.pcall('PUBLISH', wake, 'saved') end
return {status, 0}
