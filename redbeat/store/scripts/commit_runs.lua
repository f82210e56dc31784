-- commit_runs: record what was decided about claimed entries, changing only what was read, and push the
-- messages of the runs that are recorded: both or neither.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] lock       the leader's token (the schedule's key again when no lock is configured)
-- KEYS[3..] entries  the entries' keys, and after them
-- KEYS[..] histories lists of what became of an entry's runs, the newest first: one for each entry with a record; for
--                    an entry that is removed two: everything that is kept beside it
-- KEYS[..] queues    the lists that messages are pushed to, in the broker's database
-- ARGV[1] token      the caller's token, '' when no lock is configured
-- ARGV[2] lock_ms    time to live the lock is renewed to, milliseconds
-- ARGV[3] count      how many entries there are
-- ARGV[4] server     run id of the server that the messages are for; on another server nothing is pushed
-- ARGV[5] home_db    the schedule's database
-- ARGV[6] broker_db  the broker's database
-- ARGV[7] histories  how many histories there are
-- ARGV[8] kept       how many records of an entry are kept
-- ARGV[9..] twelve for each entry:
--   type             the key's type when it was claimed; anything else now: leave the entry alone
--   decided_on       '' or '=' and definition, policy and revision it was decided on, NULs between; others now:
--                    leave the entry alone. A long text, as this and claimed_meta, is '#' and its SHA-1
--   claimed_score    the score that new_score replaces; another one now: that one stays
--   new_score        'remove' to unschedule, 'delete' to remove the entry, hash and all, else the next due time
--   claimed_meta     the meta that new_meta replaces ('' for none); another one now: that one stays
--   new_meta         '' to leave the meta
--   new_error        '' to leave it, 'clear' to remove it, else JSON. It tells of the run at claimed_score: with
--                    another score now, the entry was given another time or claimed by another beat, and its
--                    error is left as it is
--   new_definition   '' to leave the definition and the policy
--   new_policy       with a new_definition '' to leave the policy, 'clear' to remove it, else JSON
--   claimed_texts    as decided_on, for a new_definition: others now, and these two stay
--   record           '' for none, else the members of a JSON object about the run, to which the time is added;
--                    of several objects each on a line of its own, the oldest first;
--                    with 'remove' and 'delete' anything but '': what is kept beside the entry goes, too
--   pushes           how many writes to queues are made with it. If there are any, the entry is left alone if
--                    anything about it has changed since its claim
-- ARGV[..] three for each write to a queue, in the order of the entries:
--   command          'lpush' or 'pexpire'
--   queue            which of the queues, 1 for the first
--   value            the message, or milliseconds
--
-- Returns {status, is_moved, results, errors, unrecorded}
--   status    'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--             holds it (then nothing was written)
--   is_moved  1 when this isn't the server that the messages are for, else 0
--   results   a text of digits, for each entry 1 when its score was written as decided and its messages are pushed, 0
--             when it was left alone, 2 when a message couldn't be pushed (and it was left alone)
--   errors    the server's error for each 2
--   unrecorded  '', or the server's error when a record couldn't be added to a history
local schedule, lock = KEYS[1], KEYS[2]
local token, lock_ms, count, server = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local home_db, broker_db, histories, kept = ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])

local status = hold_lock(lock, token, lock_ms)
if status == 'lost' then return {status, 0, '', {}, ''} end

local is_moved = 0
if server ~= '' then
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' or not string.find(info, 'run_id:' .. server, 1, true) then is_moved = 1 end
end

local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))

-- 1. compare: which decisions are still about what stands there
local commits, next_history, next_push = {}, 3 + count, 9 + 12 * count
for i = 3, 2 + count do
  local key, at = KEYS[i], 9 + (i - 3) * 12
  local kind, decided_on, claimed_score, new_score = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local claimed_meta, new_meta, new_error = ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  local new_definition, new_policy, claimed_texts = ARGV[at + 7], ARGV[at + 8], ARGV[at + 9]
  local record, pushes = ARGV[at + 10], tonumber(ARGV[at + 11])

  local is_unchanged, has_meta, has_lease, meta, meta_sha1 = true, false, false, false, false
  if kind == 'hash' and decided_on ~= '' then
    local read = redis.pcall('HMGET', key, 'definition', 'policy', 'revision', 'lease', 'meta', 'meta_sha1')
    has_lease, meta, meta_sha1 = read[4], read[5], read[6]
    is_unchanged = not read.err and match_text('=' .. texts_of(read), decided_on)
      and (read[1] or redis.call('TYPE', key).ok == kind)
    has_meta = is_unchanged and match_text(meta or '', claimed_meta)
  else
    is_unchanged = redis.call('TYPE', key).ok == kind
    -- the texts aren't read unless they are compared, as they may be very large
    if is_unchanged and kind == 'hash' and new_meta ~= '' then
      has_lease, meta, meta_sha1 = unpack(redis.call('HMGET', key, 'lease', 'meta', 'meta_sha1'))
      has_meta = match_text(meta or '', claimed_meta)
    elseif is_unchanged and kind == 'hash' then
      has_lease = redis.call('HGET', key, 'lease')
    end
  end
  local has_score = is_unchanged and redis.call('ZSCORE', schedule, key) == claimed_score
  if pushes > 0 then is_unchanged = has_meta and has_score and is_moved == 0 end
  local is_end = new_score == 'remove' or new_score == 'delete'
  commits[i - 2] = {
    key = key, claimed_score = claimed_score, new_score = is_unchanged and has_score and new_score, is_end = is_end,
    new_meta = is_unchanged and has_meta and new_meta ~= '' and new_meta, meta = meta, meta_sha1 = meta_sha1,
    new_error = kind == 'hash' and new_error or '', new_definition = new_definition, new_policy = new_policy,
    claimed_texts = claimed_texts, record = record, history = next_history, has_lease = has_lease,
    pushes = is_unchanged and pushes or 0, first = next_push,
  }
  if record ~= '' then next_history = next_history + (is_end and 2 or 1) end
  next_push = next_push + 3 * pushes
end

-- 2. record, all of them or none: before it is pushed, else a user without the right to record would send for ever
local function take_back(commit)
  if commit.new_score then redis.pcall('ZADD', schedule, commit.claimed_score, commit.key) end
  for field, before in pairs(commit.new_meta and {meta = commit.meta, meta_sha1 = commit.meta_sha1} or {}) do
    if before then
      redis.pcall('HSET', commit.key, field, before)
    else
      redis.pcall('HDEL', commit.key, field)
    end
  end
end

local recorded = 0
local is_recorded, problem = pcall(function()
  local scores, ended = {}, {}
  for _, commit in ipairs(commits) do
    local meta = commit.new_meta
    if meta then redis.call('HSET', commit.key, 'meta', meta, 'meta_sha1', sha1_of_meta(meta)) end
    recorded = recorded + 1
    if commit.new_score and commit.is_end then
      ended[#ended + 1] = commit.key
    elseif commit.new_score then
      scores[#scores + 1] = commit.new_score
      scores[#scores + 1] = commit.key
    end
  end
  for first = 1, #ended, 1000 do redis.call('ZREM', schedule, unpack(ended, first, math.min(first + 999, #ended))) end
  for first = 1, #scores, 1000 do
    redis.call('ZADD', schedule, 'XX', unpack(scores, first, math.min(first + 999, #scores)))
  end
end)
if not is_recorded then
  for place = 1, recorded do take_back(commits[place]) end
  error(problem)
end

-- 3. push
local refusals = push_messages(commits, 2 + count + histories, home_db, broker_db)

-- 4. the rest
local unrecorded, can_cut = '', false
local function finish(commit)
  local key, new_score, new_error = commit.key, commit.new_score, commit.new_error
  if new_score == 'delete' then
    redis.call('DEL', key)
  elseif new_score and new_error == 'clear' then
    redis.call('HDEL', key, 'error')
  elseif new_score and new_error ~= '' then
    redis.call('HSET', key, 'error', new_error)
  end
  if new_score and commit.new_definition ~= '' then
    local texts = '=' .. texts_of(redis.call('HMGET', key, 'definition', 'policy', 'revision'))
    if match_text(texts, commit.claimed_texts) then
      redis.call('HSET', key, 'definition', commit.new_definition)
      if commit.new_policy == 'clear' then
        redis.call('HDEL', key, 'policy')
      elseif commit.new_policy ~= '' then
        redis.call('HSET', key, 'policy', commit.new_policy)
      end
    end
  end
  if commit.record ~= '' and (new_score or commit.new_meta) then
    local history = KEYS[commit.history]
    if commit.is_end then
      redis.pcall('DEL', history, KEYS[commit.history + 1])
    else
      -- a right that is missing, or a key of another type, costs the record and not the run; a list that
      -- can't be cut would grow for ever, so the first is cut before anything is added
      local cut = can_cut and {} or redis.pcall('LTRIM', history, 0, kept - 1)
      can_cut = not cut.err
      unrecorded = cut.err or unrecorded
      local length = 0
      for members in string.gmatch(can_cut and commit.record or '', '[^\n]+') do
        length = redis.pcall('LPUSH', history, '{"at":' .. now .. ',' .. members .. '}')
        if type(length) == 'table' then unrecorded, length = length.err, 0 end
      end
      if length > kept then redis.pcall('LTRIM', history, 0, kept - 1) end
    end
  end
  if commit.has_lease and new_score and new_score ~= 'delete' then
    local asked_at = string.match(commit.has_lease, '^%S+ (%S+) now$')
    if asked_at and tonumber(asked_at) == tonumber(new_score) then  -- given back, and still asked for
      redis.call('HSET', key, 'lease', new_score .. ' ' .. asked_at .. ' now')
    else
      redis.call('HDEL', key, 'lease')
    end
  end
end

local results, errors = {}, {}
for place, commit in ipairs(commits) do
  results[place] = refusals[place] and 2 or (commit.new_score and 1 or 0)
  if refusals[place] then
    errors[#errors + 1] = refusals[place]
    take_back(commit)
  else
    local is_finished, said = pcall(finish, commit)
    if not is_finished then problem = problem or said end
  end
end
if problem then error(problem) end  -- all of them are recorded
return {status, is_moved, table.concat(results), errors, unrecorded}
