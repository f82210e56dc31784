-- read_entries: return entries, when each is due, and the server's clock.
--
-- Uses clock, entry_texts, measure_entry
-- KEYS schedule     zset of entry keys, scored by due time
-- KEYS entries[]    the entries' keys
-- ARGV entry_bytes  an entry whose definition, meta and policy have more bytes isn't read
--
-- Returns {now, rows, texts}
--   now   the server's clock, UNIX seconds with microseconds, a string
--   rows, texts  as packed by pack_rows: for each entry an object {definition, meta, score, is_meta_foreign, policy, error, type, unread_bytes,
--         revision}, or false if there is no such key; is_meta_foreign is true if another program wrote the meta,
--         unread_bytes is its size if it was not read. What is missing is left out, and so is the type of a hash. If none
--         of the keys exists, there are no rows.
-- one command finds out that many new entries don't exist
if #entries == 0 or redis.call('EXISTS', unpack(entries)) == 0 then return {now, '[]', ''} end
local rows = {}
for i, key in ipairs(entries) do
  rows[i] = false
  local kind, size, error_size = measure_entry(key)
  if kind == 'hash' then
    local fields = read_fields(key, entry_bytes, size, error_size)
    rows[i] = {
      definition = fields[1] or nil, meta = fields[2] or nil, score = redis.call('ZSCORE', schedule, key) or nil,
      is_meta_foreign = is_meta_foreign(fields[2], fields[7]) or nil, policy = fields[3] or nil,
      error = fields[4] or nil, unread_bytes = size > entry_bytes and size or nil,
      revision = fields[6] and revision_of(fields[6]) or nil,
    }
  elseif kind ~= 'none' then
    rows[i] = {score = redis.call('ZSCORE', schedule, key) or nil, type = kind}
  end
end
return {now, pack_rows(rows)}
