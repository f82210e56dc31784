-- measure_entry(key): return the type of a key, and of a hash how many bytes an entry's definition, meta and policy have
-- together, and how many its error; 0 of others. Measuring doesn't read the fields.
-- read_fields(key, entry_bytes, bytes, error_bytes): return the fields of an entry of these sizes: definition, meta,
-- policy, error, lease, revision and meta_sha1. If the first three have more than entry_bytes, they are false; if the
-- error is too long to be RedBeat's own, it is 'too large'. The last three aren't measured: they don't leave the server
-- as they are.
-- Not scripts of their own, but put in front of those that read entries.
local long_bytes = 16384
local function measure_entry(key)
  local bytes = redis.pcall('HSTRLEN', key, 'definition')
  if type(bytes) ~= 'number' or bytes == 0 then  -- else it is a hash
    local kind = redis.call('TYPE', key).ok
    if kind ~= 'hash' then return kind, 0, 0 end
  end
  local others = redis.call('HSTRLEN', key, 'meta') + redis.call('HSTRLEN', key, 'policy')  -- raises if it is refused
  return 'hash', bytes + others, redis.call('HSTRLEN', key, 'error')
end

local function read_fields(key, entry_bytes, bytes, error_bytes)
  if bytes <= entry_bytes and error_bytes <= long_bytes then
    return redis.call('HMGET', key, 'definition', 'meta', 'policy', 'error', 'lease', 'revision', 'meta_sha1')
  end
  local fields = {false, false, false}
  if bytes <= entry_bytes then fields = redis.call('HMGET', key, 'definition', 'meta', 'policy') end
  fields[4] = error_bytes > long_bytes and 'too large' or redis.call('HMGET', key, 'error')[1]
  fields[5], fields[6], fields[7] = unpack(redis.call('HMGET', key, 'lease', 'revision', 'meta_sha1'))
  return fields
end

