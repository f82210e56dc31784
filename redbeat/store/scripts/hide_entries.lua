-- hide_entries: take entries out of a part of the schedule, with all that is kept for them, and return it, so that it can be
-- written to another part. Until it is dropped, it stands under keys that nobody else looks at.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] later      zset of the keys of stored messages' entries
-- KEYS[3] statics    set of the names of entries that came from beat_schedule
-- KEYS[4] owners     set: whose beat_schedule has an entry: the owner, a tab, and its name
-- KEYS[5] away       hash: key of each entry that was taken out for celery-redbeat 2.x, to its score
-- KEYS[6] deadlines  zset of when beat must look at each run in progress
-- KEYS[7] expected   zset of the keys of entries' runs in progress, by when one must have succeeded
-- KEYS[8] streaks    zset likewise of the entries whose last run has failed
-- KEYS[9] mover      token of who moves entries out of this part, and into it
-- KEYS[10] moving    hash: name of each hidden entry, to JSON: what it was in this part
-- KEYS[11] left      set of the names of those that have left this part since the layout was changed
-- ARGV[1] prefix     what every entry's key starts with
-- ARGV[2] token      the caller's
-- ARGV[3] move       the id of this move
-- ARGV[4] target     the prefix of the part to which they go
-- ARGV[5] margin     an entry that is due, or will be in so many seconds, or is another beat's by its lease, stays; '': none does
-- ARGV[6] is_foreign  1: what is here was written by somebody who doesn't know the layout; 0: only what has left before
-- ARGV[7] max_bytes  when so many bytes are hidden, the rest of the entries stay
-- ARGV[8] count      how many entries there are
-- ARGV[9..] items    of each entry its name, how many owners it has in beat_schedules, these, how many keys besides the usual
--                    ones are kept for it, and these without the prefix
-- All keys of an entry are the prefix and a text that follows from its name, as in redbeat/keys.py.
--
-- Returns {now, rows}
--   now   the server's clock, UNIX seconds
--   rows  of each entry 'hidden', the record in moving, and three for each key: the key without the prefix, when it ends in
--         UNIX milliseconds, '0' for never, and its DUMP; or one word: 'due' and 'full': it stays as said above; 'busy': it is
--         hidden already; 'gone': there is nothing
local schedule, later, statics, owners, away = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deadlines, expected, streaks = KEYS[6], KEYS[7], KEYS[8]
local mover, moving, left = KEYS[9], KEYS[10], KEYS[11]
local prefix, token, move, target, margin = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local is_foreign, max_bytes, count = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])

check_mover(mover, token)
-- these fail before the first write if a key has another type, as what a failing script has written stays written; and what
-- is empty isn't asked for each entry
local has = {}
for _, key in ipairs({schedule, later, deadlines, expected, streaks}) do has[key] = redis.call('ZCARD', key) > 0 end
for _, key in ipairs({statics, owners, left}) do has[key] = redis.call('SCARD', key) > 0 end
for _, key in ipairs({away, moving}) do has[key] = redis.call('HLEN', key) > 0 end
local function ask(command, key, member) return has[key] and redis.call(command, key, member) end

local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local place, bytes = 9, 0

local function take_list()
  local found, length = {}, tonumber(ARGV[place])
  for i = 1, length do found[i] = ARGV[place + i] end
  place = place + 1 + length
  return found
end

local function is_due(score, lease)
  if not score or margin == '' then return false end
  local hidden_by = lease and string.match(lease, '^([%d.e+]+) ')
  if hidden_by and tonumber(hidden_by) == tonumber(score) then return true end
  return tonumber(score) >= 0 and tonumber(score) <= tonumber(now) + tonumber(margin)
end

local function existing(name, others)
  local rests, keys = rests_of(name), {}
  for _, rest in ipairs(others) do rests[#rests + 1] = rest end
  for i, rest in ipairs(rests) do keys[i] = prefix .. rest end
  local count, found = redis.call('EXISTS', unpack(keys)), {}
  for i, rest in ipairs(rests) do
    if #found < count and redis.call('EXISTS', keys[i]) == 1 then found[#found + 1] = rest end
  end
  return found
end

local function hide(name, owners_of, others)
  local entry, running = prefix .. name, prefix .. ':running:' .. name
  if ask('HEXISTS', moving, name) == 1 then return {'busy'} end
  local fields = redis.pcall('HMGET', entry, 'owner', 'lease')  -- another type has none
  local owner, lease = fields[1], fields[2]
  local score, later_score = ask('ZSCORE', schedule, entry), ask('ZSCORE', later, entry)
  -- a bare name; else it is another entry's key
  local bare = string.sub(name, 1, #prefix) ~= prefix and ask('ZSCORE', schedule, name)
  if is_due(score, lease) or is_due(bare, lease) or is_due(later_score, lease) then return {'due'} end
  if bytes > max_bytes then return {'full'} end

  local rests = existing(name, others)
  local record = {
    id = move, to = target, at = now, rests = rests, score = score or nil, bare = bare or nil, later = later_score or nil,
    expected = ask('ZSCORE', expected, running) or nil, streak = ask('ZSCORE', streaks, running) or nil,
    away = ask('HGET', away, entry) or nil, owners = {}, deadlines = {},
  }
  local has_any = score or bare or later_score or record.expected or record.streak or record.away or #rests > 0
  if has[deadlines] then
    local task_ids = redis.pcall('HKEYS', running)
    task_ids = task_ids.err and {} or task_ids
    if redis.pcall('HEXISTS', running, '') ~= 1 then task_ids[#task_ids + 1] = '' end
    for _, task_id in ipairs(task_ids) do
      local member = task_id .. '\0' .. running
      local at = redis.call('ZSCORE', deadlines, member)
      if at then
        record.deadlines[#record.deadlines + 1], has_any = {task_id, at}, true
        redis.call('ZREM', deadlines, member)
      end
    end
  end
  if ask('SREM', statics, name) == 1 then record.static, has_any = 1, true end
  for _, one in ipairs(owners_of) do
    if ask('SREM', owners, one .. '\t' .. name) == 1 then record.owners[#record.owners + 1], has_any = one, true end
  end
  if owner and redis.pcall('SREM', prefix .. ':owner:' .. owner, name) == 1 then record.owned = owner end
  if not has_any then return {'gone'} end
  record.foreign = (is_foreign == '1' or ask('SISMEMBER', left, name) == 1) and 1 or nil
  if is_foreign ~= '1' then redis.call('SADD', left, name) end

  local row = {'hidden', cjson.encode(record)}
  redis.call('HSET', moving, name, row[2])
  if score then redis.call('ZREM', schedule, entry) end
  if bare then redis.call('ZREM', schedule, name) end
  if later_score then redis.call('ZREM', later, entry) end
  if record.expected then redis.call('ZREM', expected, running) end
  if record.streak then redis.call('ZREM', streaks, running) end
  if record.away then redis.call('HDEL', away, entry) end
  for _, rest in ipairs(rests) do
    local hidden = prefix .. ':moving:' .. rest
    redis.call('RENAME', prefix .. rest, hidden)
    local payload, rest_ms = redis.call('DUMP', hidden), redis.call('PTTL', hidden)
    local length = #row
    row[length + 1], row[length + 3] = rest, payload
    row[length + 2] = rest_ms < 0 and '0' or string.format('%.0f', now_ms + rest_ms)
    bytes = bytes + #payload
  end
  return row
end

local rows = {}
for i = 1, count do
  local name = ARGV[place]
  place = place + 1
  local owners_of = take_list()
  rows[i] = hide(name, owners_of, take_list())
end
return {now, rows}
