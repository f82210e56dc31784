-- read_entry(key, entry_bytes): return the type of a key; and of a hash the fields of an entry: definition, meta, policy,
-- error, lease, revision and meta_crc32; and how many bytes the first three have. Of more than entry_bytes they are false,
-- and a larger definition is only measured. An error that is too long to be RedBeat's own is 'too large'.
-- size_of(key): how many bytes an entry's definition, meta and policy have.
-- Not scripts of their own, but put in front of those that read entries.
local function size_of(key)
  local size = redis.call('HSTRLEN', key, 'definition') + redis.call('HSTRLEN', key, 'meta')
  return size + redis.call('HSTRLEN', key, 'policy')
end

local function read_entry(key, entry_bytes)
  local size = redis.pcall('HSTRLEN', key, 'definition')
  if type(size) ~= 'number' or size == 0 then
    local kind = redis.call('TYPE', key).ok
    if kind ~= 'hash' then return kind, {}, 0 end
    size = redis.call('HSTRLEN', key, 'definition')  -- raises if it is refused
  end
  local fields
  if size <= entry_bytes then
    fields = redis.call('HMGET', key, 'definition', 'meta', 'policy', 'error', 'lease', 'revision', 'meta_crc32')
    size = #(fields[1] or '') + #(fields[2] or '') + #(fields[3] or '')
  else
    size = size_of(key)
    fields = {false, false, false, unpack(redis.call('HMGET', key, 'error', 'lease', 'revision', 'meta_crc32'))}
  end
  if size > entry_bytes then fields[1], fields[2], fields[3] = false, false, false end
  if fields[4] and #fields[4] > 16384 then fields[4] = 'too large' end
  return 'hash', fields, size
end

