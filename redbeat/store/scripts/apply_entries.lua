-- apply_entries: store and remove entries and calendars, and their owners, all of it or nothing: only if each
-- entry and each calendar is still what the caller has read.
--
-- Uses check_layout, entry_texts, read_entry, match_entry, set_field
-- KEYS schedule   zset of entry keys, scored by due time (any key where there are no entries)
-- KEYS entries[]  the entries' keys
-- KEYS gone[]     keys that are removed: what was kept beside entries, and calendars in their old form
-- KEYS owned[]    sets of the names that belong to an owner
-- ARGV wake       channel on which the change is announced
-- ARGV changes    of each entry; what a row leaves out stays as it is:
--   change      'save'; 'replace': delete everything of it first; 'delete'; or 'keep': only compare it
--   read        what the caller has read with its owner, as match_entry has it
--   read_meta   the meta that the caller has read, of a long one '#' and its SHA-1; left out: it isn't compared
--   name        its name
--   owned       which of owned is the set of its owner's names; 0: none
--   definition, policy, error, owner   '' removes it
--   meta, meta_crc32  a meta, and its mark if it is RedBeat's own
--   score       the next due time; 'remove' unschedules it
-- ARGV beside     of each thing beside the entries:
--   kind        'calendar', 'history' or 'backfilled': store one of gone; 'read': compare a calendar with what the
--               caller has read; 'own' or 'disown': add names to a set of owned, or remove them
--   place       which of gone or owned it is
--   content     a list of texts; for a calendar days, spans and 'about' to their labels; for 'read' also the type of
--               the key as a text, 'none' for no key
--
-- Returns 0, or which entry, counted from 1, has changed since it was read, or as a negative number which of gone is a
-- calendar that has changed (then nothing was written)

-- what the caller has read of a calendar is its fields, or the type of its key
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

for i, key in ipairs(entries) do
  local row = changes[i]
  local is_same = match_entry(key, row.read, 'owner')
  is_same = is_same and (not row.read_meta or match_text(redis.call('HGET', key, 'meta') or '', row.read_meta))
  if not is_same then return i end
end
for _, one in ipairs(beside) do
  if one.kind == 'read' and not match_calendar(gone[one.place], one.content) then return -one.place end
end

-- these are checked before the first write, as what a failing script has written stays written
if #entries > 0 then redis.call('ZCARD', schedule) end
for _, key in ipairs(owned) do redis.call('SCARD', key) end
for i, key in ipairs(entries) do
  local row = changes[i]
  local names = owned[row.owned]
  if row.change == 'delete' then
    if names then redis.call('SREM', names, row.name) end
    redis.call('ZREM', schedule, key)
    redis.call('DEL', key)
  elseif row.change ~= 'keep' then
    if row.change == 'replace' then redis.call('DEL', key) end
    if names then redis.call('SADD', names, row.name) end
    if row.score == 'remove' then
      redis.call('ZREM', schedule, key)
    elseif row.score then
      redis.call('ZADD', schedule, row.score, key)
    end
    set_field(key, 'meta_crc32', row.meta_crc32)
    for _, field in ipairs({'meta', 'definition', 'policy', 'error', 'owner'}) do set_field(key, field, row[field]) end
  end
end
for _, key in ipairs(gone) do redis.call('DEL', key) end
local commands = {['history'] = 'RPUSH', ['backfilled'] = 'SADD', ['own'] = 'SADD', ['disown'] = 'SREM'}
for _, one in ipairs(beside) do
  if one.kind == 'calendar' then
    for day, label in pairs(one.content) do redis.call('HSET', gone[one.place], day, label) end
  elseif one.kind ~= 'read' then
    local key = one.kind ~= 'own' and one.kind ~= 'disown' and gone[one.place] or owned[one.place]
    for _, text in ipairs(one.content) do redis.call(commands[one.kind], key, text) end
  end
end
redis.pcall('PUBLISH', wake, 'applied')
return 0
