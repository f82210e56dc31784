-- read_entries: return entries, when each is due, and the server's clock.
--
-- Uses clock, entry_texts, measure_entry
-- KEYS schedule     zset of entry keys, scored by due time
-- KEYS entries[]    the entries' keys
-- ARGV entry_bytes  an entry whose definition, meta and policy have more bytes isn't read
--
-- Returns {now, rows}
--   now   the server's clock, UNIX seconds with microseconds, a string
--   rows  {definition, meta, score, is_meta_foreign, policy, error, type, unread_bytes, revision} for each entry;
--         is_meta_foreign is 1 if somebody else has written the meta, unread_bytes is its size if it wasn't read. What
--         is missing is nil, and so is the type of a hash. A row ends with its last value that isn't nil, and is nil if
--         there is no such key. A definition, a meta and a score without anything else are one text, with NULs
--         between, if there is none in them. If none of the keys exists, there are no rows at all.
local rows = {}
-- one command finds out that many new entries don't exist
if #entries == 0 or redis.call('EXISTS', unpack(entries)) == 0 then return {now, rows} end
for i, key in ipairs(entries) do
  local row = false
  local kind, size, error_size = measure_entry(key)
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
  rows[i] = row
end
return {now, rows}
