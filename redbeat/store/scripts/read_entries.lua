-- read_entries: return entries, when each is due, and the server's clock.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2..] entries  the entries' keys
-- ARGV[1] entry_bytes  an entry whose definition, meta and policy have more bytes isn't read
--
-- Returns {now, rows}
--   now   the server's clock, UNIX seconds with microseconds, a string
--   rows  {definition, meta, score, is_meta_foreign, policy, error, type, unread_bytes, revision} for each entry;
--         is_meta_foreign is 1 if somebody else has written the meta, unread_bytes is its size if it wasn't read. What
--         is missing is nil, and so is the type of a hash. A row ends with its last value that isn't nil, and is nil if
--         there is no such key. A definition, a meta and a score without anything else are one text, with NULs
--         between, if there is none in them. If none of the keys exists, there are no rows at all.
local schedule = KEYS[1]
local entry_bytes = tonumber(ARGV[1])

local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
local rows = {}
-- one command finds out that many new entries don't exist
if #KEYS == 1 or redis.call('EXISTS', unpack(KEYS, 2)) == 0 then return {now, rows} end
for i = 2, #KEYS do
  local key, row = KEYS[i], false
  local kind, size, error_size = measure_key(key)
  if kind == 'hash' then
    local fields = read_fields(key, entry_bytes, size, error_size)
    local definition, meta, score = fields[1], fields[2], redis.call('ZSCORE', schedule, key)
    row = {definition, meta, score, is_meta_foreign(meta, fields[7]) and 1}
    row[5], row[6], row[7], row[8] = fields[3], fields[4], false, size > entry_bytes and size
    row[9] = fields[6] and revision_of(fields[6])
    -- most have neither policy nor error, and reading a nil takes as long as reading a value
    local length = 9
    while length > 0 and not row[length] do
      row[length], length = nil, length - 1
    end
    if length == 3 and definition and meta and not (has_nul(definition) or has_nul(meta)) then
      row = definition .. '\0' .. meta .. '\0' .. score  -- reading one value takes a third of the time
    end
  elseif kind ~= 'none' then
    row = {false, false, redis.call('ZSCORE', schedule, key), false, false, false, kind}
  end
  rows[i - 1] = row
end
return {now, rows}
