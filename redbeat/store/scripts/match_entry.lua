-- match_entry(key, read, field): tell whether an entry is still what the caller has read, and the type of its key.
-- read is '' for no key; definition, policy, revision and one more field with NULs between, of a long text '#' and its
-- SHA-1; of an entry that was too large to be read '=' and its bytes; or the type of a key that isn't a hash.
-- Not a script of its own, but put in front of those that need it, after entry_texts and read_entry.
local function match_entry(key, read, field)
  local kind, found = redis.call('TYPE', key).ok, ''
  if kind == 'hash' and string.match(read, '^=%d+$') then
    found = '=' .. size_of(key)
  elseif kind == 'hash' then
    local fields = redis.call('HMGET', key, 'definition', 'policy', 'revision', field)
    found = texts_of(fields) .. '\0' .. (fields[4] or '')
  elseif kind ~= 'none' then
    found = kind
  end
  return match_text(found, read), kind
end

