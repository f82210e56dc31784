-- put_away: take entries out of the schedule that celery-redbeat 2.x can't run, and store their due times, if no beat
-- of version 3 leads.
--
-- Uses check_layout, entry_texts
-- KEYS schedule    zset of entry keys, scored by due time
-- KEYS lock        the leader's token (the schedule's key again when no lock is configured)
-- KEYS downgraded  hash: entry's key to its score, ' static' after it where its name stood among the statics
-- KEYS statics     set of the names of entries that came from beat_schedule
-- KEYS entries[]   the entries' keys
-- ARGV beginning   how a token of version 3 begins, '' when no lock is configured
-- ARGV rows        of each entry:
--   member       the member of the schedule: its key or its bare name
--   name         its name
--   read         what the caller has read: the SHA-1 of definition, policy, revision and meta with NULs between, or the
--                type of a key that isn't a hash; '' if it was too large to be read
--
-- Returns {token, results}
--   token    '', or the token of a leader of version 3 (then nothing was written)
--   results  for each entry 1 when it was taken out, 0 when it has changed or left the schedule meanwhile
if beginning ~= '' then
  local token = redis.call('GET', lock)
  if token and string.sub(token, 1, #beginning) == beginning then return {token, {}} end
end
redis.call('SREM', statics, '')  -- no name is ''; this fails before the first write if the key isn't a set

local results = {}
for i, key in ipairs(entries) do
  local member, name, read = rows[i].member, rows[i].name, rows[i].read
  local kind = redis.call('TYPE', key).ok
  local found, score = kind, redis.call('ZSCORE', schedule, member)
  if kind == 'hash' and read ~= '' then
    local fields = redis.call('HMGET', key, 'definition', 'policy', 'revision', 'meta')
    found = sha1hex(texts_of(fields) .. '\0' .. (fields[4] or ''))
  end
  results[i] = 0
  if score and (found == read or (read == '' and kind == 'hash')) then
    redis.call('HSET', downgraded, key, score)
    redis.call('ZREM', schedule, member)
    if redis.call('SREM', statics, name) == 1 then redis.call('HSET', downgraded, key, score .. ' static') end
    results[i] = 1
  end
end
return {'', results}
