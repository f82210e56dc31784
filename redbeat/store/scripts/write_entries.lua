-- write_entries: store and remove entries of one part, and what is kept beside them, all of it or nothing: only if each
-- entry and each calendar is still what the caller has read.
--
-- Uses check_layout, hold_lock, entry_texts, read_entry, match_entry
-- KEYS schedule      zset of entry keys, scored by due time
-- KEYS entries[]     the entries' keys
-- KEYS beside[]      other keys: calendars, sets of names, what is kept for entries
-- ARGV wake          channel on which the change is announced
-- ARGV states        what entries have in common; what a state leaves out stays as it is:
--   read, read_meta, read_owner  what the caller has read, as match_entry has it
--   is_removed  the entry is deleted before anything is stored of it
--   fields      its new fields: name, value, name, value and so on
--   unset       the names of fields that are removed
--   score       the next due time; 'remove' unschedules it
-- ARGV state_of      of each entry which of the states it has
-- ARGV rows          of each key of beside; those after the last row are deleted:
--   read        the fields of a calendar that the caller has read, or the type of its key, 'none' for no key; left out: it
--               isn't compared
--   is_removed  it is deleted first
--   command, texts  what is called with it, 'SADD' and names, say; no texts: nothing is
-- BYTES definitions  of each entry; '' leaves it
--
-- Returns {status, changed, deleted}
--   status   'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--            holds it (then nothing was written)
--   changed  0, or which entry, counted from 1, has changed since it was read, or as a negative number which of beside
--            is a calendar that has changed (then nothing was written)
--   deleted  how many of the entries that are removed there were
if status == 'lost' then return {status, 0, 0} end

local function match_calendar(key, read)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'hash' or type(read) ~= 'table' then return read == kind end
  local fields, left = redis.call('HGETALL', key), 0
  for _ in pairs(read) do left = left + 1 end
  for i = 1, #fields, 2 do
    if read[fields[i]] ~= fields[i + 1] then return false end
    left = left - 1
  end
  return left == 0
end

-- Lua passes no more than some thousands of texts at once
local function call_many(command, key, texts)
  for first = 1, #texts, 1000 do
    redis.call(command, key, unpack(texts, first, math.min(first + 999, #texts)))
  end
end

for i, key in ipairs(entries) do
  if not match_entry(key, states[state_of[i]]) then return {status, i, 0} end
end
for i, row in ipairs(rows) do
  if row.read and not match_calendar(beside[i], row.read) then return {status, -i, 0} end
end

-- a key of another type is an error before the first write, as what a failing script has written stays written
if #entries > 0 then redis.call('ZSCORE', schedule, '') end
for i, key in ipairs(beside) do
  local row = rows[i] or {is_removed = true}
  if row.is_removed then redis.call('DEL', key) end
  call_many(row.command, key, row.texts or {})
end
local deleted, scored = 0, {}
for i, key in ipairs(entries) do
  local state, definition = states[state_of[i]], definitions[i]
  if state.is_removed then deleted = deleted + redis.call('DEL', key) end
  local fields = state.fields or {}
  if definition ~= '' then
    redis.call('HSET', key, 'definition', definition, unpack(fields))
  elseif #fields > 0 then
    redis.call('HSET', key, unpack(fields))
  end
  if state.unset then redis.call('HDEL', key, unpack(state.unset)) end
  if state.score == 'remove' then
    redis.call('ZREM', schedule, key)
  elseif state.score then
    scored[#scored + 1], scored[#scored + 2] = state.score, key
  end
end
call_many('ZADD', schedule, scored)
-- without the right to publish the change is made all the same, and noticed a little later
redis.pcall('PUBLISH', wake, 'written')
return {status, 0, deleted}
