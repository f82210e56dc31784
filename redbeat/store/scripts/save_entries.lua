-- save_entries: store entries, all of them or none: only if each is still what the caller has read.
--
-- Uses check_layout, hold_lock, entry_texts, read_entry, match_entry, set_field
-- KEYS schedule      zset of entry keys, scored by due time
-- KEYS entries[]     the entries' keys
-- ARGV wake          channel on which the change is announced
-- ARGV states        what entries have in common; what a state leaves out stays as it is:
--   read        what the caller has read with its meta, as match_entry has it
--   meta, meta_crc32
--   score       the next due time
--   policy      '' removes it
--   revision    another one: what was decided about the entry by now isn't recorded any more
-- ARGV state_of      of each entry which of the states it has
-- BYTES definitions  of each entry; '' leaves it
--
-- Returns {status, changed}
--   status   'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--            holds it (then nothing was written)
--   changed  0, or which entry, counted from 1, has changed since it was read (then nothing was written)
if status == 'lost' then return {status, 0} end

local is_hash = {}
-- one command finds out that many new entries don't exist
local is_any_there = #entries > 0 and redis.call('EXISTS', unpack(entries)) > 0
for i, key in ipairs(entries) do
  local read = states[state_of[i]].read
  local is_same, kind = read == '', 'none'
  if is_any_there then is_same, kind = match_entry(key, read, 'meta') end
  if not is_same then return {status, i} end
  is_hash[i] = kind == 'hash'
end

local scored = {}
for i, key in ipairs(entries) do
  local definition, state = definitions[i], states[state_of[i]]
  local meta, policy, revision = state.meta, state.policy, state.revision
  if definition ~= '' then redis.call('HSET', key, 'definition', definition) end
  if meta then redis.call('HSET', key, 'meta', meta, 'meta_crc32', state.meta_crc32) end
  set_field(key, 'policy', policy)
  set_field(key, 'revision', revision)
  if is_hash[i] and (definition ~= '' or policy or revision) then redis.call('HDEL', key, 'error') end
  if state.score then scored[#scored + 1], scored[#scored + 2] = state.score, key end
end
if #scored > 0 then redis.call('ZADD', schedule, unpack(scored)) end
-- without the right to publish the change is made all the same, and noticed a little later
redis.pcall('PUBLISH', wake, 'saved')
return {status, 0}
