-- measure_entry(key): return how many bytes an entry's definition, meta and policy have together, and how many its
-- error and lease. read_fields(key, entry_bytes, bytes, own_bytes): return the fields of an entry of these sizes:
-- definition, meta, policy, error, lease, revision and meta_sha1. If the first three have more than entry_bytes, they
-- are false; if error and lease are too long to be RedBeat's own, the error is 'too large'.
-- Not scripts of their own, but put in front of those that read entries.
-- Measuring doesn't read the fields, unless the caller lacks the right to ask for lengths (HSTRLEN).
local may_measure, long_bytes = true, 16384
local function measure_entry(key)
  local bytes = may_measure and redis.pcall('HSTRLEN', key, 'definition')
  if type(bytes) == 'number' then
    bytes = bytes + redis.call('HSTRLEN', key, 'meta') + redis.call('HSTRLEN', key, 'policy')
    return bytes, redis.call('HSTRLEN', key, 'error') + redis.call('HSTRLEN', key, 'lease')
  end
  may_measure = false
  local fields = redis.call('HMGET', key, 'definition', 'meta', 'policy', 'error', 'lease')
  bytes = #(fields[1] or '') + #(fields[2] or '') + #(fields[3] or '')
  return bytes, #(fields[4] or '') + #(fields[5] or '')
end

local function read_fields(key, entry_bytes, bytes, own_bytes)
  if bytes <= entry_bytes and own_bytes <= long_bytes then
    return redis.call('HMGET', key, 'definition', 'meta', 'policy', 'error', 'lease', 'revision', 'meta_sha1')
  end
  local fields = {false, false, false}
  if bytes <= entry_bytes then fields = redis.call('HMGET', key, 'definition', 'meta', 'policy') end
  fields[4], fields[5] = 'too large', false
  if own_bytes <= long_bytes then fields[4], fields[5] = unpack(redis.call('HMGET', key, 'error', 'lease')) end
  fields[6], fields[7] = unpack(redis.call('HMGET', key, 'revision', 'meta_sha1'))
  return fields
end

