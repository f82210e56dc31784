-- match_entry(key, state): tell whether an entry is still what the caller has read, and the type of its key.
-- state.read: '' for no key; definition, policy and revision with NULs between, and one after them, of a long text '#' and
-- its SHA-1; of an entry that was too large to be read '=' and its bytes; or the type of a key that isn't a hash; nil:
-- nothing is compared. state.read_meta, state.read_owner: likewise, of these fields; nil: any.
-- Not a script of its own, but put in front of those that need it, after entry_texts and read_entry.
local function match_entry(key, state)
  local kind, read = redis.call('TYPE', key).ok, state.read
  if not read then return true, kind end
  if kind ~= 'hash' then return read == (kind == 'none' and '' or kind), kind end
  if string.match(read, '^=%d+$') then return read == '=' .. size_of(key), kind end
  local fields = redis.call('HMGET', key, 'definition', 'policy', 'revision', 'meta', 'owner')
  return match_text(texts_of(fields) .. '\0', read)
    and (not state.read_meta or match_text(fields[4] or '', state.read_meta))
    and (not state.read_owner or (fields[5] or '') == state.read_owner), kind
end

