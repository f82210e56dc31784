-- fetch_due: read the entries that are due, oldest first, and when the next one is due; or stored messages.
--
-- With a lock the entries stay as they are; without one they are hidden from other beats for lease_ms.
--
-- Uses check_layout, clock, hold_lock, entry_texts, read_scores, read_entry
-- KEYS schedule      zset of entry keys, or of stored messages, scored by due time
-- KEYS deadlines     zset of when beat must look at each run in progress: its task id, NUL, and the key of its entry's runs
-- KEYS other         the zset of which only the first score is returned: of stored messages, or the schedule where those
--                    are fetched. A stored message in the schedule is moved there
-- ARGV limit         how many entries at most
-- ARGV max_bytes     about how many bytes of them at most, but one entry in any case
-- ARGV entry_bytes   an entry whose definition, meta and policy have more bytes isn't read
-- ARGV lease_ms      > 0: hide the entries from other beats for this time; 0: don't hide them
-- ARGV prefix        what every entry's key starts with
-- ARGV pending       how many of those that are due to leave out, as they are pending
-- ARGV last_pending  the key of the last of these; null: there are none. If it has another place by now, there are no
--                    texts, and has_more is 1
-- ARGV before        only those with a lower score, as those with it are pending: they were due at 0; null: all that are due
-- ARGV are_messages  true: they are entries of stored messages, which are read, too
--
-- The limit counts entries that are returned, not members without a hash. Entries are looked for among the next 200,000
-- members, 10,000 of them with a hash. At most 5,000 members without one are returned.
-- Reads the entries' hashes, whose keys are in the zset; a member that is a bare name is rewritten to the entry's key.
-- Reads the hashes of runs in progress, whose keys are in the members of deadlines; a member without one is removed.
-- A score of 0 means "now", and is rewritten to the time, so that the run has the same due time at every try. An entry
-- that is hidden, or was asked for by 0, gets a field lease, '<score it has> <nominal>', and ' now' after it if it was
-- asked for: if the beat that has fetched it dies, it becomes due again as the same run. That of a run that has waited
-- for another one to end has ' next ' and the score that the entry gets back after it.
--
-- Returns {status, now, next, has_more, others, texts, passed_deadlines, next_deadline, other_head}
--   status    'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--             holds it (then the rest is empty)
--   now       the server's clock, UNIX seconds with microseconds, a string
--   next      score of the first entry due later than now, a string, '' when there is none
--   has_more  1 when more entries are due than were returned
--   others, texts  as of packed. The score in the texts is nominal, at which the entry was due; other has score if it has
--             another one now, type if that isn't a hash, unread_bytes, its size if it was not read, is_asked if it was due
--             at 0, has_lease, revision and next_score
--   passed_deadlines  {member, score, record} of each that is not later than now, the first 100; record is that of its
--             run, nil if there is none
--   next_deadline  the first score after those, a string, '' when there is none
--   other_head  the lowest score in the other zset that isn't negative, a string, '' when there is none
local missing_limit, missing_bytes = math.min(5000, 10 * limit), 1048576
local look_limit, measure_limit, chunk = 200000, 10000, 4000

-- not a whole second, which might be taken for a score that celery-redbeat 2.x has rounded
if tonumber(time[2]) == 0 then now = string.format('%d.000001', tonumber(time[1])) end
if status == 'lost' then return {status, now, '', 0, '[]', '', {}, '', ''} end

local last = before and '(' .. before or now
if last_pending and redis.call('ZRANGEBYSCORE', schedule, 0, last, 'LIMIT', pending - 1, 1)[1] ~= last_pending then
  return {status, now, '', 1, '[]', '', {}, '', ''}
end
-- read before this script writes a lease
local upcoming = redis.call('ZRANGEBYSCORE', schedule, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local bytes, seen, offset = 0, {}, pending
local has_more, is_full, taken, missing, measured, looked, due = false, false, 0, 0, 0, 0, {}
local window, asked, score_now = math.min(limit, chunk), {}, nil
local function rescore_asked()
  if #asked > 0 then redis.call('ZADD', schedule, 'XX', unpack(asked)) end
  asked = {}
end
repeat
  due = redis.call('ZRANGEBYSCORE', schedule, 0, last, 'WITHSCORES', 'LIMIT', offset, window)
  local has_any, passed = missing < missing_limit, 0
  if not has_any then  -- one question for all of them
    local keys = {}
    for i = 1, #due, 2 do
      keys[#keys + 1] = string.sub(due[i], 1, #prefix) == prefix and due[i] or prefix .. due[i]
    end
    has_any = #keys > 0 and redis.call('EXISTS', unpack(keys)) > 0
  end
  if not has_any then
    passed = #due / 2
    has_more, offset = has_more or passed > 0, offset + passed
  end
  -- an entry's bare name may be due later in the order, perhaps beyond this batch
  local names = {}
  for i = 1, has_any and #due or 0, 2 do names[#names + 1] = string.sub(due[i], #prefix + 1) end
  local name_scores = read_scores(schedule, names)
  for i = 1, has_any and #due or 0, 2 do
    if taken >= limit then
      is_full = true
      break
    end
    local key, nominal, kind, fields, size = due[i], due[i + 1], '', {}, 0
    if prefix .. names[(i + 1) / 2] == key then  -- other keys may be out of reach: another slot, an ACL
      kind, fields, size = read_entry(key, entry_bytes)
    end
    if kind == '' or (kind == 'none' and redis.call('EXISTS', prefix .. key) == 1) then
      redis.call('ZREM', schedule, key)
      key = prefix .. key
      if not seen[key] then redis.call('ZADD', schedule, 'LT', nominal, key) end
      kind, fields, size = read_entry(key, entry_bytes)
    end
    local message, body_bytes = false, false
    if kind == 'hash' and (are_messages or string.byte(key, #prefix + 1) == 58) then  -- a colon: it is no entry
      message, body_bytes = unpack(redis.call('HMGET', key, 'message', 'body_bytes'))
    end
    local is_moved = message and not are_messages  -- somebody wants a stored message to be sent at this time
    if is_moved then
      redis.call('ZREM', schedule, key)
      redis.call('ZADD', other, nominal, key)
      kind, message, seen[key] = 'message', false, true
    end
    if message then size = size + #message + (tonumber(body_bytes) or 0) end
    if kind == 'hash' then measured = measured + 1 end
    local is_read = kind == 'hash' and size <= entry_bytes
    local is_missing, stays = kind == 'none', not is_moved
    local row_bytes = #key + (is_read and size or 0) + #(fields[4] or '')
    if taken > 0 and bytes + row_bytes > max_bytes then
      is_full = true
      break
    elseif is_missing and (missing >= missing_limit or missing_bytes <= 0) then
      has_more, passed = true, passed + 1
    elseif not seen[key] then  -- both its key and its bare name may be due
      seen[key] = true
      if is_missing then
        missing, missing_bytes, passed = missing + 1, missing_bytes - #key, passed + 1
      else
        taken = taken + 1
      end
      local name_score = tonumber(name_scores[(i + 1) / 2] or nil)
      if name_score and name_score >= 0 and name_score <= tonumber(now) then
        local name = string.sub(key, #prefix + 1)
        -- else it is another entry's key
        if string.sub(name, 1, #prefix) ~= prefix then redis.call('ZREM', schedule, name) end
      end
      local is_asked = nominal == '0' or nominal == '-0'
      if is_asked and not score_now then  -- the server writes it in a way of its own
        redis.call('ZADD', schedule, 'XX', now, key)
        score_now = redis.call('ZSCORE', schedule, key)
      elseif is_asked and lease_ms == 0 then
        asked[#asked + 1], asked[#asked + 2] = now, key
        if #asked == 2000 then rescore_asked() end
      end
      if is_asked then nominal = score_now end
      stays = not is_asked and lease_ms == 0
      local score, next_score, rare = nominal, nil, nil
      if fields[5] then
        local lease = string.sub(fields[5], 1, 99)  -- RedBeat's own are shorter
        local hidden_by, hidden_nominal, asked, back = string.match(lease, '^([%d.e+]+) ([%d.e+]+)( ?%l*) ?([-%d.e+]*)$')
        local is_hidden = hidden_by and tonumber(hidden_by) == tonumber(score)
        if is_hidden and (tonumber(hidden_nominal) or score + 1) <= tonumber(score) then
          nominal, is_asked = hidden_nominal, asked == ' now'
          next_score = asked == ' next' and tonumber(back) and back or nil
        end
      end
      if lease_ms > 0 then
        redis.call('ZADD', schedule, 'XX', string.format('%.6f', tonumber(now) + lease_ms / 1000), key)
        score = redis.call('ZSCORE', schedule, key)
      end
      if kind == 'hash' and (is_asked or lease_ms > 0) then
        local told = is_asked and ' now' or next_score and ' next ' .. next_score or ''
        fields[5] = score .. ' ' .. nominal .. told
        redis.call('HSET', key, 'lease', fields[5])
      end
      if fields[5] or fields[6] or not is_read or score ~= nominal then
        rare = {
          score = score ~= nominal and score or nil, type = kind ~= 'hash' and kind or nil, is_asked = is_asked or nil,
          unread_bytes = kind == 'hash' and not is_read and size or nil, has_lease = fields[5] and true or nil,
          revision = fields[6] and revision_of(fields[6]) or nil, next_score = next_score,
        }
      end
      if not is_read then fields[1], fields[2], fields[3] = false, false, false end
      fields[8] = is_read and message
      pack_entry(key, nominal, fields, rare)
      bytes = bytes + row_bytes
    end
    if stays then offset = offset + 1 end
  end
  rescore_asked()
  looked = looked + #due / 2
  local is_last = is_full or #due < 2 * window or taken >= limit or passed == 0
  is_last = is_last or looked >= look_limit or measured >= measure_limit
  has_more = has_more or is_full or (is_last and #due == 2 * window)
  window = chunk
until is_last

-- of what can't be read, nothing is due
local passed_deadlines, next_deadline = {}, ''
local ahead = redis.pcall('ZRANGEBYSCORE', deadlines, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 101)
for i = 1, ahead.err and 0 or #ahead, 2 do
  local member, at = ahead[i], ahead[i + 1]
  local task_id, running = string.match(member, '^([^%z]*)%z(.*)$')
  if tonumber(at) > tonumber(now) or i > 200 then
    next_deadline = at
    break
  elseif not running or string.sub(running, 1, #prefix) ~= prefix then
    redis.call('ZREM', deadlines, member)
  else
    local record = redis.pcall('HGET', running, task_id)
    passed_deadlines[#passed_deadlines + 1] = {member, at, type(record) == 'string' and record}
  end
end

local head = redis.pcall('ZRANGEBYSCORE', other, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local next, more = upcoming[2] or '', has_more and 1 or 0
local others, texts = packed()
return {status, now, next, more, others, texts, passed_deadlines, next_deadline, head[2] or ''}
