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
-- ARGV sent          for each entry the due time of the run that is sent, UNIX seconds; true: its score; false: none is
-- ARGV rows          for each entry which of kinds it is, 1 for the first
-- ARGV kinds         what else is recorded about entries:
--   is_rare          it has more than is_strict, has_meta, valid_until, labels and writes, or leaves the schedule
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
--   lease            '' removes it, nil leaves it
--   run              the run that is tracked:
--     task_id
--     due            when it is due, UNIX seconds
--     is_released    it has waited for another run to end
--     overlap        'allow'; 'dropped': it has waited and isn't sent; 'published': it has been sent already; 'reserved':
--                    likewise, and reserve_runs has noted it before; else find_hold says whether it is sent while another
--                    run of its entry is in progress, and refuses a value that it doesn't know
--     limits         members of its record without state, due and when it was sent, each after a comma
--     queue_seconds  how long it may wait on its queue
--     held_record    what record is when another run may hold it back and does; its outcome and the
--                    reason are added to its last line
--     held_score     what the new score is then; the meta is left
-- ARGV write_lists   lists of writes to queues, each 'lpush' of a message or 'pexpire' of milliseconds, and which of queues
-- BYTES values       the texts of each entry, one after the other. If it is strict or has a new definition, what it was
--                    decided on: its definition, or if there are any, definition, policy and revision, NULs between. If it
--                    is strict or has a new meta, the meta that it had. Of long ones of these, '#' and their SHA-1. Then
--                    the new meta and its mark; and for each of its writes the message, or the milliseconds
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

-- 1. compare: what may be written of each entry, by its place; false: nothing. Lists, as a table for each takes longer
local scores_now, now_seconds, count = read_scores(schedule, entry_keys), tonumber(now), #entry_keys
local new_metas, new_marks, old_metas, writes_of, first_values, held, refusals = {}, {}, {}, {}, {}, {}, {}
local due_seconds, history_of, next_history, next_running, next_value = {}, {}, 1, 1, 1

-- a run that another one may hold back is noted now, as what can't be noted must not be sent
local function note_first(i, run)
  local is_known, found = pcall(find_hold, run.running, run)
  if is_known and not found then
    is_known, found = pcall(redis.call, 'HSET', run.running, run.task_id, run.text)
    run.is_noted = is_known
    if is_known then return end
  end
  new_metas[i], writes_of[i] = false, false
  if is_known then
    new_scores[i], held[i] = run.held_score, found
  else
    new_scores[i], refusals[i] = false, refusal_of(run.running, found)
  end
end

for i = 1, count do  -- ipairs takes longer
  local key, fields, score = entry_keys[i], kinds[rows[i]], scores[i]
  rows[i] = fields
  local is_strict, new_meta, writes, run = fields.is_strict, fields.has_meta, write_lists[fields.writes], fields.run
  local texts, meta
  if is_strict or fields.new_definition then texts, next_value = values[next_value], next_value + 1 end
  if is_strict or new_meta then meta, next_value = values[next_value], next_value + 1 end
  if new_meta then new_meta, new_marks[i], next_value = values[next_value], values[next_value + 1], next_value + 2 end

  local is_same, old_meta
  if is_strict and not fields.type then
    local found = redis.pcall('HMGET', key, 'definition', 'policy', 'revision', 'meta')
    is_same = not found.err and match_text(texts_of(found), texts) and (found[1] or redis.call('TYPE', key).ok == 'hash')
    old_meta = found[4]
  else
    is_same = redis.call('TYPE', key).ok == (fields.type or 'hash')
    -- the texts aren't read unless they are compared, as they may be very large
    old_meta = is_same and new_meta and redis.call('HGET', key, 'meta')
  end
  local has_meta = is_same and meta and match_text(old_meta or '', meta)
  local has_score = is_same and scores_now[i] == score
  if writes then
    -- with a lock a run may have been prepared before it is due; and a call may be on its way for long
    due_seconds[i] = tonumber(score)
    local is_due = token == '' or due_seconds[i] <= now_seconds
    local is_late = fields.valid_until ~= '' and tonumber(fields.valid_until) <= now_seconds
    has_score = has_meta and has_score and not is_moved and is_due and not is_late
    has_meta = has_score
  end
  first_values[i], next_value = next_value, next_value + (writes and #writes or 0)
  local new_score = new_scores[i]
  local is_end = new_score == 'remove' or new_score == 'delete'
  if sent[i] == true then sent[i] = score end
  history_of[i], next_history = next_history, next_history + (is_end and 3 or (fields.record or kept > 0 and sent[i]) and 1 or 0)
  writes_of[i], new_metas[i], old_metas[i] = has_score and writes or false, has_meta and new_meta or false, old_meta or ''
  if not has_score then new_scores[i] = false end
  if fields.new_definition then fields.read = texts end
  if run then
    local overlap = run.overlap
    local is_deciding = not (overlap == 'allow' or overlap == 'published' or overlap == 'reserved' or overlap == 'dropped')
    run.running, next_running = running[next_running], next_running + 1
    run.members = '"labels":"' .. fields.labels .. '","due":"' .. run.due .. '"' .. run.limits .. ',"next":"' .. new_score .. '"'
    -- with at_most_once its message leaves after this, if at all
    local holds = is_deciding and not writes and '"holds":"0",' or ''
    run.text = '{"state":"sent","sent":"' .. now .. '",' .. holds .. run.members .. '}'
    if is_deciding and has_score then note_first(i, run) end
  end
end

-- 2. record, all of them or none: before it is pushed, else a user without the right to record would send for ever
local function take_back(i)
  local key, run = entry_keys[i], rows[i].run
  if run and run.is_noted then redis.pcall('HDEL', run.running, run.task_id) end
  if new_scores[i] then redis.pcall('ZADD', schedule, scores[i], key) end
  if new_metas[i] then
    pcall(set_field, key, 'meta', old_metas[i])
    pcall(set_field, key, 'meta_crc32', '')
  end
end

local recorded = 0
local is_recorded, problem = pcall(function()
  local scored, ended = {}, {}
  for i = 1, count do
    local key, meta, new_score = entry_keys[i], new_metas[i], new_scores[i]
    if meta then redis.call('HSET', key, 'meta', meta, 'meta_crc32', new_marks[i]) end
    recorded = i
    if new_score == 'remove' or new_score == 'delete' then
      ended[#ended + 1] = key
    elseif new_score then
      scored[#scored + 1], scored[#scored + 2] = new_score, key
    end
  end
  if #ended > 0 then redis.call('ZREM', schedule, unpack(ended)) end
  if #scored > 0 then redis.call('ZADD', schedule, 'XX', unpack(scored)) end
end)
if not is_recorded then
  for i = recorded + 1, count do new_scores[i], new_metas[i] = false, false end
  for i = 1, count do take_back(i) end
  error(problem)
end

-- 3. push
push_messages(writes_of, first_values, refusals)

-- 4. the rest
local looked_at, expecting, unrecorded, last_due, sent_text = {}, {}, '', nil, nil

local function add_record(history, text)
  local length = redis.pcall('LPUSH', history, text)  -- a key of another type costs the record and not the run
  if type(length) == 'table' then
    unrecorded = length.err
  elseif length > kept then
    redis.pcall('LTRIM', history, 0, kept - 1)
  end
end

local function add_records(history, record)
  for members in string.gmatch(record, '[^\n]+') do add_record(history, '{"at":' .. now .. ',' .. members .. '}') end
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

-- return what became of a run that was published, if it has ended already
local function note_sent(run)
  local is_noted, member, ended = pcall(note_run, run)
  if not is_noted then
    unrecorded = text_of_error(member)
  elseif member then
    looked_at[#looked_at + 1], looked_at[#looked_at + 2] = later(now, run.queue_seconds + 1), member
  end
  return is_noted and ended
end

-- what few rows have; returns what is added to the history, and the due time of the run that was sent
local function finish_rare(i, key, fields, new_score, due)
  local run, record = fields.run, fields.record
  if held[i] then
    due, record = nil, run.held_record and run.held_record .. ',' .. held[i]
  elseif run and (new_score or run.overlap == 'published' or run.overlap == 'reserved') then
    local ended = note_sent(run)
    if ended and (record or due) then record = with_members(record or '"due":' .. due, ended) end
  end
  if new_score == 'delete' then
    redis.call('DEL', key)
  elseif new_score then
    if not fields.type then set_field(key, 'error', fields.new_error) end
    set_field(key, 'lease', fields.lease)
  end
  if new_score and fields.new_definition and not held[i] then
    local found = redis.call('HMGET', key, 'definition', 'policy', 'revision')
    if match_text(texts_of(found), fields.read) then
      redis.call('HSET', key, 'definition', fields.new_definition)
      set_field(key, 'policy', fields.new_policy)
    end
  end
  return record, due
end

local at_due = '{"at":' .. now .. ',"due":'
local function finish(i, due)
  local key, fields, new_score, first, record = entry_keys[i], rows[i], new_scores[i], history_of[i], nil
  if fields.is_rare then record, due = finish_rare(i, key, fields, new_score, due) end
  local is_end = new_score == 'remove' or new_score == 'delete'
  if not (kept > 0 or is_end) or not (new_score or new_metas[i]) then return end
  if tells ~= '' and (record or due) then tell_of(key, record or '"due":' .. due) end
  if is_end then
    redis.pcall('DEL', unpack(histories, first, first + 2))
  elseif (record or due) and fields.run and fields.run.is_released and not held[i] then
    add_released(histories[first], fields.run.due, record or '"due":' .. due)
  elseif record then
    add_records(histories[first], record)
  elseif due then
    if due ~= last_due then last_due, sent_text = due, at_due .. due .. '}' end
    add_record(histories[first], sent_text)
  end
end

-- count what became of an entry's runs; it is written when all are done, as most have the same labels
local sent_words, amounts, bucket, above, upto = {}, {}, 0, -1, -1
for place = 1, #late_bounds + 1 do sent_words[place] = 'sent+late/' .. place end

local function add_amount(labels, words, amount)
  local of_words = amounts[words]
  if not of_words then
    of_words = {}
    amounts[words] = of_words
  end
  of_words[labels] = (of_words[labels] or 0) + amount
end

local function count_run(i, due)
  local fields, labels = rows[i], rows[i].labels
  if fields.counted then
    for word, amount in string.gmatch(fields.counted, ' ([%l_/]+)=?(%d*)') do
      add_amount(labels, word, tonumber(amount) or 1)
    end
  end
  if held[i] then
    if string.find(held[i], '"outcome":"skipped"', 1, true) then add_amount(labels, 'skipped/overlap', 1) end
    return
  end
  local late = due and now_seconds - (due == scores[i] and due_seconds[i] or tonumber(due))
  if late and late < 31536000 then
    late = late > 0 and late or 0
    if late > upto or late <= above then  -- else it is in the bucket of the one before
      bucket = bucket_of(late_bounds, late)
      above, upto = late_bounds[bucket - 1] or -1, late_bounds[bucket] or math.huge
    end
    add_amount(labels, sent_words[bucket], 1)
    add_amount(labels, 'late/sum', late)
  elseif late then  -- somebody made it due
    add_amount(labels, 'sent', 1)
  end
  local run = fields.run
  if run and run.overlap ~= 'dropped' then
    local max_seconds = string.match(run.limits, '"max":([%d.]+)')
    local at = expected_at(run.due, run.due, new_scores[i], max_seconds)
    expecting[#expecting + 1], expecting[#expecting + 2] = at, run.running
  end
end

local function write_counted()
  for words, of_words in pairs(amounts) do
    for labels, amount in pairs(of_words) do
      add_figure(figures, labels, words, words == 'late/sum' and micros_of(amount) or amount)
    end
  end
  if #expecting > 0 then redis.pcall('ZADD', expected, 'NX', unpack(expecting)) end
end

local results, reasons, done = {}, {}, 0
local function finish_others()
  while done < count do
    done = done + 1
    local refusal, due = refusals[done], sent[done]
    results[done] = refusal and '2' or held[done] and '3' or (new_scores[done] and '1' or '0')
    if refusal then
      reasons[#reasons + 1] = refusal
      take_back(done)
    else
      reasons[#reasons + 1] = held[done]
      finish(done, due)
      if new_scores[done] and (due or rows[done].counted) then count_run(done, due) end
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
