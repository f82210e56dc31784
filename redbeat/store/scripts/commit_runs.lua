-- commit_runs: record what was decided about fetched entries, changing only what was read, and push the
-- messages of the runs that are recorded: both or neither. A run that another one of its entry holds back isn't sent.
--
-- Uses check_layout, clock, hold_lock, entry_texts, read_scores, push_messages, set_field, count_figures, run_records, find_hold, note_run
-- KEYS schedule      zset of entry keys, scored by due time
-- KEYS deadlines     zset of when beat must look at each run in progress
-- KEYS events        stream of what has happened
-- KEYS figures       hash of what was counted since it was last looked at
-- KEYS expected      zset of the entries whose runs are tracked, by when one must have succeeded
-- KEYS entry_keys[]  the entries' keys, one for each row
-- KEYS running[]     hashes of an entry's runs in progress, by task id: one for each row with a run
-- KEYS histories[]   histories of entries, the newest run first: one for each row with a record, unless none are kept;
--                    for an entry that leaves the schedule three: everything that is kept beside it
-- KEYS queues[]      the lists that messages are pushed to, in the broker's database
-- ARGV server        run id of the server that the messages are for; on another server nothing is pushed; '': there are
--                    no messages
-- ARGV home_db       the schedule's database
-- ARGV broker_db     the broker's database
-- ARGV kept          how many records of an entry are kept
-- ARGV tells         the events to send, with spaces between: of run_sent and run_skipped; '' for none
-- ARGV scores        for each entry the score that its new score replaces; another one now: that one stays
-- ARGV new_scores    for each entry 'remove' to unschedule it, 'delete' to remove it, hash and all, else the next due time
-- ARGV sent          for each entry the due time of the run that is sent, UNIX seconds; '': none is
-- ARGV rows          what else is recorded about each entry: an object, or the place of an equal one
--   type             the key's type when it was fetched; anything else now: leave the entry alone; nil: a hash
--   is_strict        with other texts now, leave the entry alone
--   has_meta         it has a new meta; where the one that it replaces is another one now, that one stays
--   record           members of a JSON object about the run, to which the time is added; of several objects each on a
--                    line of its own, the oldest first; nil: that of the run that is sent
--   valid_until      from when on a row with writes leaves the entry alone, UNIX seconds; '': never
--   labels           the id of the labels under which its run is counted
--   counted          what is counted besides that it is sent: words as 'unsent' or 'skipped/late=3', each after a space
--   new_error        '' removes it, nil leaves it, else JSON. It tells of the run at its score: with another score now,
--                    the entry was given another time or fetched by another beat, and its error is left as it is
--   new_definition   nil leaves the definition and the policy; with other texts now these two stay
--   new_policy       with a new_definition: nil leaves the policy, '' removes it, else JSON
--   writes           which of write_lists is made with it, 1 for the first. If there is one, an entry is left
--                    alone if anything about it has changed since it was fetched, or if with a lock it isn't due yet
--   task_id          of the run that is tracked
--   run              the run that is tracked:
--     due            when it is due, UNIX seconds
--     overlap        'allow'; 'skip', 'buffer_one' or 'replace': it isn't sent while another run of its entry is in
--                    progress, and in the other two cases it waits, if none does, with 'replace' for one that is to be
--                    terminated; 'dropped': it has waited and isn't sent; 'published': it has been sent already;
--                    'reserved': likewise, and reserve_runs has noted it before
--     limits         members of its record without state, due and when it was sent, each after a comma
--     queue_seconds  how long it may wait on its queue
--     held_record    what record is when another run may hold it back and does; its outcome and the
--                    reason are added to its last line
--     held_score     what the new score is then; the meta is left
-- ARGV write_lists   lists of writes to queues, each 'lpush' of a message or 'pexpire' of milliseconds, and which of queues
-- BYTES values       the texts of each entry, one after the other. If it is strict or has a new definition, what it was
--                    decided on: its definition, or if there are any, definition, policy and revision, NULs between. If it
--                    is strict or has a new meta, the meta that it had. Of long ones of these, '#' and their SHA-1. Then
--                    the new meta; and for each of its writes the message, or the milliseconds
--
-- Returns {status, is_moved, results, reasons, unrecorded}
--   status    'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--             holds it (then nothing was written)
--   is_moved  1 when this isn't the server that the messages are for, else 0
--   results   a text of digits, for each entry 1 when its score was written as decided and its messages are pushed, 0
--             when it was left alone, 2 when a message couldn't be pushed, or the entry's runs in progress can't be
--             read (and it was left alone), 3 when another run has held it back (and that is recorded)
--   reasons   for each 2 the server's error, for each 3 the members that were added to its record
--   unrecorded  '', or the server's error when a record couldn't be added to a history, or to the runs in progress
if status == 'lost' then return {status, 0, '', {}, ''} end

local info = server ~= '' and redis.pcall('INFO', 'server')
local is_moved = server ~= '' and (type(info) ~= 'string' or not string.find(info, 'run_id:' .. server, 1, true))

-- 1. compare: which rows are still about what stands there
local scores_now, now_seconds, count = read_scores(schedule, entry_keys), tonumber(now), #entry_keys
local given, rows, shared = rows, {}, {}
local next_running, next_history, next_value = 1, 1, 0

local function take_value()
  next_value = next_value + 1
  return values[next_value]
end

for i, key in ipairs(entry_keys) do
  local place = type(given[i]) == 'number' and given[i] or i
  local fields, score, new_score, due = given[place], scores[i], new_scores[i], sent[i] ~= '' and sent[i]
  shared[place] = shared[place] or {__index = fields}
  local kind, run, is_strict = fields.type or 'hash', fields.run, fields.is_strict
  local writes, overlap = write_lists[fields.writes] or {}, run and run.overlap
  local is_deciding = overlap == 'skip' or overlap == 'buffer_one' or overlap == 'replace'
  local is_end = new_score == 'remove' or new_score == 'delete'
  local texts = (is_strict or fields.new_definition) and take_value()
  local meta = (is_strict or fields.has_meta) and take_value()
  local new_meta = fields.has_meta and take_value()

  -- what stands there, in this order: definition, policy, revision, lease, meta, meta_sha1
  local is_unchanged, has_meta, found = true, false, {}
  if kind == 'hash' and is_strict then
    found = redis.pcall('HMGET', key, 'definition', 'policy', 'revision', 'lease', 'meta', 'meta_sha1')
    is_unchanged = not found.err and match_text(texts_of(found), texts)
      and (found[1] or redis.call('TYPE', key).ok == 'hash')
    has_meta = is_unchanged and match_text(found[5] or '', meta)
  else
    is_unchanged = redis.call('TYPE', key).ok == kind
    -- the texts aren't read unless they are compared, as they may be very large
    if is_unchanged and kind == 'hash' and new_meta then
      found[4], found[5], found[6] = unpack(redis.call('HMGET', key, 'lease', 'meta', 'meta_sha1'))
      has_meta = match_text(found[5] or '', meta)
    elseif is_unchanged and kind == 'hash' then
      found[4] = redis.call('HGET', key, 'lease')
    end
  end
  local has_score = is_unchanged and scores_now[i] == score
  if #writes > 0 then
    -- with a lock a run may have been prepared before it is due; and a call may be on its way for long
    local is_due = token == '' or tonumber(score) <= now_seconds
    local is_late = fields.valid_until ~= '' and tonumber(fields.valid_until) <= now_seconds
    is_unchanged = has_meta and has_score and not is_moved and is_due and not is_late
  end
  -- what is written of it, and what it was before
  local row = setmetatable({
    key = key, score = score, new_score = new_score, sent = due, is_end = is_end, texts = texts, found = found,
    record = fields.record or (kept > 0 or is_end) and due and '"due":' .. due, history = next_history,
    writes = is_unchanged and writes or {}, first_value = next_value + 1,
    meta_to_set = is_unchanged and has_meta and new_meta, score_to_set = is_unchanged and has_score and new_score,
  }, shared[place])
  rows[i], next_value = row, next_value + #writes
  next_history = next_history + (is_end and 3 or row.record and 1 or 0)
  if run then
    row.running, row.due, row.overlap, next_running = running[next_running], run.due, overlap, next_running + 1
    row.deadline = later(now, run.queue_seconds + 1)
    row.members = '"labels":"' .. row.labels .. '","due":"' .. run.due .. '"' .. run.limits .. ',"next":"' .. new_score .. '"'
    -- with at_most_once its message leaves after this, if at all
    local holds = is_deciding and #writes == 0 and '"holds":"0",' or ''
    row.text = '{"state":"sent","sent":"' .. now .. '",' .. holds .. row.members .. '}'
  end
  if is_deciding and row.score_to_set then
    local is_known, held = pcall(find_hold, row.running, row)
    if is_known and not held then  -- noted now, as what can't be noted must not be sent
      is_known, held = pcall(redis.call, 'HSET', row.running, row.task_id, row.text)
      row.is_noted, held = is_known, not is_known and held
    end
    if not is_known then
      row.refusal, row.score_to_set, row.meta_to_set, row.writes = refusal_of(row.running, held), false, false, {}
    elseif held then
      row.held, row.score_to_set, row.meta_to_set, row.writes = held, run.held_score, false, {}
    end
  end
end

-- 2. record, all of them or none: before it is pushed, else a user without the right to record would send for ever
local function take_back(row)
  if row.is_noted then redis.pcall('HDEL', row.running, row.task_id) end
  if row.score_to_set then redis.pcall('ZADD', schedule, row.score, row.key) end
  if row.meta_to_set then
    pcall(set_field, row.key, 'meta', row.found[5] or '')
    pcall(set_field, row.key, 'meta_sha1', row.found[6] or '')
  end
end

local recorded = 0
local is_recorded, problem = pcall(function()
  local new_scores, ended = {}, {}
  for i, row in ipairs(rows) do
    local meta, new_score = row.meta_to_set, row.score_to_set
    if meta then redis.call('HSET', row.key, 'meta', meta, 'meta_sha1', sha1_of_meta(meta)) end
    recorded = i
    if new_score and row.is_end and not row.held then
      ended[#ended + 1] = row.key
    elseif new_score then
      new_scores[#new_scores + 1], new_scores[#new_scores + 2] = new_score, row.key
    end
  end
  if #ended > 0 then redis.call('ZREM', schedule, unpack(ended)) end
  if #new_scores > 0 then redis.call('ZADD', schedule, 'XX', unpack(new_scores)) end
end)
if not is_recorded then
  for i = recorded + 1, count do rows[i].score_to_set, rows[i].meta_to_set = false, false end
  for i = 1, count do take_back(rows[i]) end
  error(problem)
end

-- 3. push
local refusals = push_messages(rows, queues, values, home_db, broker_db)

-- 4. the rest
local looked_at, expecting = {}, {}
local unrecorded, length, last_members, last_text = '', 0, '', ''
local function add_record(history, members)
  if members ~= last_members then last_members, last_text = members, '{"at":' .. now .. ',' .. members .. '}' end
  length = redis.pcall('LPUSH', history, last_text)
  if type(length) == 'table' then unrecorded, length = length.err, 0 end
end

local function add_records(history, record)
  -- a key of another type costs the record and not the run
  for members in string.gmatch(record or '', '[^\n]+') do add_record(history, members) end
  if length > kept then redis.pcall('LTRIM', history, 0, kept - 1) end
end

-- what became of a run that has waited takes the place of the record that says so
local function add_released(history, due, record)
  local found, waits_at, held_by = redis.pcall('LRANGE', history, 0, 19), nil, nil
  for place, text in ipairs(found.err and {} or found) do
    local waiting = string.find(text, '"outcome":"waiting"', 1, true) and string.match(text, '"due":([%d.e+]+)')
    if waiting and is_same_time(waiting, due) then
      waits_at, held_by = place - 1, string.match(text, '"held_by":"[^"]*"')
    end
  end
  local is_one = waits_at and not string.find(record, '\n', 1, true)
  local text = '{"at":' .. now .. ',' .. record .. (held_by and ',' .. held_by or '') .. '}'
  local said = is_one and redis.pcall('LSET', history, waits_at, text)
  if not said or said.err then add_records(history, record) end
end

-- tell of what is added to the history of an entry, whether or not that can be written
local function tell_of(key, record)
  for members in string.gmatch(record, '[^\n]+') do
    local outcome = string.match(members, '"outcome":"(%l+)"')
    local is_sent = not outcome or string.find(members, '"ended":', 1, true)
    local event = is_sent and 'run_sent' or (outcome == 'skipped' and 'run_skipped')
    if event and string.find(tells, event, 1, true) and string.find(members, '"due":', 1, true) then
      local text = '{"at":' .. now .. ',' .. members .. '}'
      redis.pcall('XADD', events, 'MAXLEN', '~', 10000, '*', 'event', event, 'key', key, 'run', text)
    end
  end
end

local function finish(row)
  local key, new_score, overlap = row.key, row.score_to_set, row.overlap
  local lease, record, new_error = row.found[4], row.record, not row.type and row.new_error
  if row.held then
    if row.run.held_record then
      local held_record = row.run.held_record .. ',' .. row.held
      add_records(histories[row.history], held_record)
      if tells ~= '' then tell_of(key, held_record) end
    end
  elseif new_score and overlap == 'allow' and not lease then  -- as most
    local reply = redis.pcall('HSET', row.running, row.task_id, row.text)
    if type(reply) == 'table' then
      unrecorded = reply.err
    else
      looked_at[#looked_at + 1], looked_at[#looked_at + 2] = row.deadline, row.task_id .. '\0' .. row.running
    end
  elseif overlap and (new_score or overlap == 'published' or overlap == 'reserved') then
    row.is_released = lease and string.find(lease, ' next ', 1, true)
    local is_noted, member, ended = pcall(note_run, row)
    if not is_noted then
      unrecorded = text_of_error(member)
    elseif member then
      looked_at[#looked_at + 1], looked_at[#looked_at + 2] = row.deadline, member
    elseif ended then
      record = record and with_members(record, ended)
    end
  end
  if new_score == 'delete' then
    redis.call('DEL', key)
  elseif new_score then
    set_field(key, 'error', new_error)
  end
  if new_score and row.new_definition and not row.held then
    local found = redis.call('HMGET', key, 'definition', 'policy', 'revision')
    if match_text(texts_of(found), row.texts) then
      redis.call('HSET', key, 'definition', row.new_definition)
      set_field(key, 'policy', row.new_policy)
    end
  end
  if (record or row.is_end) and (new_score or row.meta_to_set) and not row.held then
    if tells ~= '' and record then tell_of(key, record) end
    if row.is_end then
      redis.pcall('DEL', unpack(histories, row.history, row.history + 2))
    elseif row.is_released then
      add_released(histories[row.history], row.due, record)
    else
      add_records(histories[row.history], record)
    end
  end
  if lease and new_score and new_score ~= 'delete' then
    local asked_at = string.match(lease, '^%S+ (%S+) now$')
    if asked_at and tonumber(asked_at) == tonumber(new_score) then  -- given back, and still asked for
      redis.call('HSET', key, 'lease', new_score .. ' ' .. asked_at .. ' now')
    else
      redis.call('HDEL', key, 'lease')
    end
  end
end

-- count what became of an entry's runs; it is written when all are done, as most have the same labels
local sent_words = {}
local amounts = setmetatable({}, {__index = function(all, words) all[words] = {} return all[words] end})
for bucket = 1, #late_bounds + 1 do sent_words[bucket] = 'sent+late/' .. bucket end

local function add_amount(labels, words, amount)
  local of_words = amounts[words]
  of_words[labels] = (of_words[labels] or 0) + amount
end

local function count_run(row)
  local labels, run, due = row.labels, row.run, row.sent and tonumber(row.sent)
  if row.counted then
    for word, amount in string.gmatch(row.counted, ' ([%l_/]+)=?(%d*)') do add_amount(labels, word, tonumber(amount) or 1) end
  end
  if row.held then
    if string.find(row.held, '"outcome":"skipped"', 1, true) then add_amount(labels, 'skipped/overlap', 1) end
    return
  end
  local late = due and seconds_of(now_seconds - due)
  if late and late < 31536000 then
    add_amount(labels, sent_words[bucket_of(late_bounds, late)], 1)
    add_amount(labels, 'late/sum', micros_of(late))
  elseif late then  -- somebody made it due
    add_amount(labels, 'sent', 1)
  end
  if run and row.overlap ~= 'dropped' then
    local max_seconds = string.match(run.limits, '"max":([%d.]+)')
    local at = expected_at(run.due, run.due, row.new_score, max_seconds)
    expecting[#expecting + 1], expecting[#expecting + 2] = at, row.running
  end
end

local function write_counted()
  for words, of_words in pairs(amounts) do
    for labels, amount in pairs(of_words) do add_figure(figures, labels, words, amount) end
  end
  if #expecting > 0 then redis.pcall('ZADD', expected, 'NX', unpack(expecting)) end
end

local results, reasons, done = {}, {}, 0
local function finish_others()
  while done < count do
    done = done + 1
    local row = rows[done]
    local refusal = row.refusal or refusals[done]
    results[done] = refusal and '2' or row.held and '3' or (row.score_to_set and '1' or '0')
    reasons[#reasons + 1] = refusal or row.held or nil
    if refusal then
      take_back(row)
    else
      finish(row)
      if (row.sent or row.counted) and row.score_to_set then count_run(row) end
    end
  end
end
while done < count do  -- what one entry refuses is no reason to leave the others
  local is_finished, said = pcall(finish_others)
  if not is_finished then problem = problem or said end
end
local noted = #looked_at == 0 or redis.pcall('ZADD', deadlines, unpack(looked_at))
if type(noted) == 'table' then unrecorded = noted.err end
pcall(write_counted)
if problem then error(problem) end  -- all of them are recorded
return {status, is_moved and 1 or 0, table.concat(results), reasons, unrecorded}
