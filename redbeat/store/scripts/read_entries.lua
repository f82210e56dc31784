-- read_entries: return entries, when each is due, and the server's clock.
--
-- Uses clock, entry_texts, read_entry
-- KEYS schedule     zset of entry keys, scored by due time
-- KEYS entries[]    the entries' keys
-- ARGV entry_bytes  an entry whose definition, meta and policy have more bytes isn't read
--
-- Returns {now, others, texts}
--   now   the server's clock, UNIX seconds with microseconds, a string
--   others, texts  as of packed, for each entry, without its key; other has type if that isn't a hash ('none': there is no such
--         key), revision, and unread_bytes, its size if it was not read. If none of the keys exists, there are no texts.
-- one command finds out that many new entries don't exist
if #entries == 0 or redis.call('EXISTS', unpack(entries)) == 0 then return {now, '[]', ''} end
for i, key in ipairs(entries) do
  local kind, fields, size = read_entry(key, entry_bytes)
  local unread_bytes, other = size > entry_bytes and size or nil, nil
  if kind ~= 'hash' or fields[6] or unread_bytes then
    other = {type = kind, revision = fields[6] and revision_of(fields[6]) or nil, unread_bytes = unread_bytes}
  end
  pack_entry('', kind ~= 'none' and redis.call('ZSCORE', schedule, key) or '', fields, other)
end
return {now, packed()}
