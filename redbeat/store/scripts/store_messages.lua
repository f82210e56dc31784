-- store_messages: store messages that are to be sent later, each with an entry; one with the same task id is replaced.
--
-- Uses check_layout
-- KEYS later       zset of entry keys, scored by when their messages are to be sent
-- KEYS entries[]   the keys of their entries
-- KEYS bodies[]    the keys of the bodies of those messages that haven't theirs
-- ARGV wake        channel on which it is announced if beat may have to look soon
-- ARGV must_exist  each replaces another one, as it belongs to another part of the schedule, and is on its way
-- ARGV rows        of each entry:
--   score       when it is to be sent, UNIX seconds
--   definition, policy
--   revision    another one for each message that is stored
-- BYTES texts      two for each entry: its message, JSON; and JSON about a body that isn't, '' when the message has it
-- Beat looks at the first score at least once a second, so only what is due within seconds is announced.
--
-- Returns how many messages were stored; 0: one that must exist doesn't any more, and nothing was written
local last = redis.call('TIME')[1] + 5
local is_soon, next_body = false, 1
for _, key in ipairs(must_exist and entries or {}) do
  if redis.call('EXISTS', key) == 0 then return 0 end
end
for i, entry in ipairs(entries) do
  local row, message, body = rows[i], texts[2 * i - 1], texts[2 * i]
  -- first, as it may be refused: the key has another type, or there is no memory; then nothing is written
  redis.call('ZADD', later, row.score, entry)
  redis.call('DEL', entry)
  redis.call('HSET', entry, 'definition', row.definition, 'policy', row.policy, 'revision', row.revision, 'message', message)
  if body ~= '' then
    redis.call('SET', bodies[next_body], body)
    redis.call('HSET', entry, 'body_bytes', #body)  -- a fetch counts them
    next_body = next_body + 1
  end
  is_soon = is_soon or tonumber(row.score) <= last
end
-- without the right to publish they are stored all the same, and noticed a little later
if is_soon then redis.pcall('PUBLISH', wake, 'stored') end
return #entries
