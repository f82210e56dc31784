-- apply_entries: store and remove entries and calendars, and their owners, all of it or nothing: only if each
-- entry and each calendar is still what the caller has read.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2..] entries  the entries' keys, and after them
-- KEYS[..] gone      keys that are removed: what was kept beside entries, and calendars in their old form
-- KEYS[..] owned     sets of the names that belong to an owner
-- ARGV[1] wake       channel on which the change is announced
-- ARGV[2] count      how many entries there are
-- ARGV[3] gone       how many keys are removed
-- ARGV[4..] eleven for each entry:
--   change      'save'; 'replace': delete everything of it first; 'delete'; or 'keep': only compare it
--   read        what the caller has read: '' for no key, else the SHA-1 of definition, policy, revision and owner with
--               NULs between; for an entry that was too large to be read '=' and its size in bytes
--   read_meta   '': don't compare it; else the SHA-1 of the meta that the caller has read
--   name        its name
--   owned       which of KEYS is the set of its owner's names; 0: none
--   owner       '' to leave it, else '=' and the owner; '=' alone removes it
--   definition  '' to leave it
--   meta        '' to leave it, else '=' and the meta, or '~' and one that was somebody else's where it comes from
--   policy      '' to leave it, else '=' and the policy; '=' alone removes it
--   error       '' to leave it, else '=' and the error; '=' alone removes it
--   score       '' to leave it, 'remove' to unschedule it, else the next due time
-- ARGV[..] three for each thing beside the entries:
--   kind        'calendar', 'history' or 'backfilled': store one of gone; 'read': compare a calendar with what the
--               caller has read; 'own' or 'disown': add names to a set of owned, or remove them
--   place       which of KEYS it is
--   content     JSON: an array of texts; for a calendar an object of days, spans and 'about' to their labels; for
--               'read' also the type of the key as a text, 'none' for no key
--
-- Returns 0, or which entry, counted from 1, has changed since it was read, or as a negative number which of
-- KEYS is a calendar that has changed (then nothing was written)
local schedule = KEYS[1]
local wake, count, gone = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local changes = {}
for i = 2, 1 + count do
  local key, at = KEYS[i], 4 + (i - 2) * 11
  local change, read, read_meta = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local kind, found, found_meta = redis.call('TYPE', key).ok, '', ''
  if kind == 'hash' and string.sub(read, 1, 1) == '=' then
    found = '=' .. measure_entry(key)
  elseif kind == 'hash' then
    local fields = redis.call('HMGET', key, 'definition', 'policy', 'revision', 'owner', 'meta')
    found = sha1hex(texts_of(fields) .. '\0' .. (fields[4] or ''))
    found_meta = sha1hex(fields[5] or '')
  elseif kind ~= 'none' then
    found = kind
  end
  if found ~= read or (read_meta ~= '' and found_meta ~= read_meta) then return i - 1 end
  changes[i] = change
end
local contents = {}
for place = 4 + count * 11, #ARGV, 3 do contents[place] = cjson.decode(ARGV[place + 2]) end
for place, content in pairs(contents) do
  if ARGV[place] == 'read' then
    local key = KEYS[tonumber(ARGV[place + 1])]
    if not match_calendar(key, content) then return -tonumber(ARGV[place + 1]) end
  end
end

-- these are checked before the first write, as what a failing script has written stays written
redis.call('ZCARD', schedule)
for i = 2 + count + gone, #KEYS do redis.call('SCARD', KEYS[i]) end
for i = 2, 1 + count do
  local key, at, change = KEYS[i], 4 + (i - 2) * 11, changes[i]
  local name, owned, owner = ARGV[at + 3], tonumber(ARGV[at + 4]), ARGV[at + 5]
  local definition, meta, policy = ARGV[at + 6], ARGV[at + 7], ARGV[at + 8]
  local error, score = ARGV[at + 9], ARGV[at + 10]
  if change == 'delete' then
    if owned > 0 then redis.call('SREM', KEYS[owned], name) end
    redis.call('ZREM', schedule, key)
    redis.call('DEL', key)
  elseif change ~= 'keep' then
    if change == 'replace' then redis.call('DEL', key) end
    if owned > 0 then redis.call('SADD', KEYS[owned], name) end
    if score == 'remove' then
      redis.call('ZREM', schedule, key)
    elseif score ~= '' then
      redis.call('ZADD', schedule, score, key)
    end
    if definition ~= '' then redis.call('HSET', key, 'definition', definition) end
    local mark, text = string.sub(meta, 1, 1), string.sub(meta, 2)
    if mark ~= '' then redis.call('HSET', key, 'meta', text) end
    if mark == '=' then redis.call('HSET', key, 'meta_sha1', sha1_of_meta(text)) end
    for field, value in pairs({policy = policy, error = error, owner = owner}) do
      if value == '=' then
        redis.call('HDEL', key, field)
      elseif value ~= '' then
        redis.call('HSET', key, field, string.sub(value, 2))
      end
    end
  end
end
for i = 2 + count, 1 + count + gone do redis.call('DEL', KEYS[i]) end
for place, content in pairs(contents) do
  local kind, key = ARGV[place], KEYS[tonumber(ARGV[place + 1])]
  if kind == 'calendar' then
    for day, label in pairs(content) do redis.call('HSET', key, day, label) end
  elseif kind ~= 'read' then
    local commands = {['history'] = 'RPUSH', ['backfilled'] = 'SADD', ['own'] = 'SADD', ['disown'] = 'SREM'}
    for _, text in ipairs(content) do redis.call(commands[kind], key, text) end
  end
end
-- without the right to publish the change is made all the same, and noticed a little later
redis.pcall('PUBLISH', wake, 'applied')
return 0
