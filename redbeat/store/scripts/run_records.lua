-- decode_record(text): the record of a run in progress as a table, nil for a text that is none.
-- decode_waiting(text): the run that waits for another one as a table of due and for, nil for a text that is none.
-- is_same_time(left, right): whether two texts are the same time; Python and the server write them differently.
-- read_run(running, task_id, due): the record of the run with this task id and due time (any, if due is nil); nil for none.
-- store_run(running, task_id, record, seconds): store it, and let beat look at it in so many seconds (nil: when it would).
-- forget_run(running, task_id): forget it, and when beat was to look at it.
-- members_of(run): what became of a run as members of a JSON object.
-- is_void(record): whether the record is a reservation that holds no other run back. A reservation isn't recorded as
-- sent, or has holds, the time until which it holds other runs back; publishing its message is recorded after that.
-- find_holder(running, task_id, due, root, skips_void): the task id and the record of a run that holds its entry, or the record
-- of a task of its workflow, besides the run with this task id and due time, and what belongs to the same workflow, whose
-- run is root; nil for none. The third value is that record's own task id. With skips_void, void reservations don't hold; where
-- nothing does, the fourth value is the list of the task ids of those that aren't recorded as sent.
-- is_over(record, delivery): whether this delivery of the run with the record has ended, and another one goes on.
-- expected_at(at, due, next, max): by when an entry's run is expected to have succeeded that is due at this time, but
-- not before now: 'max' seconds later, or if it has none, as long as its runs are apart, and an hour at most. due and next
-- are the due times of a run and the one after it, which is no time if it was the last one.
-- later(at, seconds): the time that many seconds after another, as a text.
-- Not scripts of their own, but put in front of those that need them, after clock; their scripts have deadlines. What a record says stands in redbeat/store/run_record.py.
local is_time, is_number, is_text = {due = true, sent = true, started = true, eta = true, holds = true}, {}, {}
for name in string.gmatch('due sent started eta holds queue max pause attempt wait ran', '%l+') do is_number[name] = true end
for name in string.gmatch('delivery worker terminate root outcome error overlap broken breaking task', '%l+') do
  is_text[name] = true
end

-- others may write anything: what has no sense is left out, as a number that can't be encoded would end each script
local function drop_nonsense(record)
  for name, value in pairs(record) do
    local kind, number = type(value), tonumber(value)
    local is_finite = number and number == number and math.abs(number) < 1e15
    local has_sense = kind == 'string' or kind == 'boolean' or (kind == 'number' and is_finite)
    if is_number[name] then has_sense = has_sense and is_finite end
    if is_time[name] then has_sense = has_sense and number >= 0 and number < 1e11 end
    if is_text[name] then has_sense = kind == 'string' end
    if name == 'after' then
      if kind == 'table' then drop_nonsense(value) end
      has_sense = kind == 'table' and type(value.outcome) == 'string'
    elseif name == 'over' then
      has_sense = kind == 'table'
      for _, delivery in ipairs(has_sense and value or {}) do has_sense = has_sense and type(delivery) == 'string' end
    end
    if not has_sense then record[name] = nil end
  end
end

local function decode_record(text)
  if not text or text == '' then return nil end
  local is_read, record = pcall(cjson.decode, text)
  if not (is_read and type(record) == 'table' and type(record.state) == 'string') then return nil end
  drop_nonsense(record)
  return record
end

local function decode_waiting(text)
  local is_read, waiting = pcall(cjson.decode, text or '')
  if not (is_read and type(waiting) == 'table' and type(waiting.due) == 'string') then return nil end
  if not string.match(waiting.due, '^[%d.e+]+$') or (tonumber(waiting.due) or 1e11) >= 1e11 then return nil end
  if type(waiting['for']) ~= 'string' then waiting['for'] = '' end
  return waiting
end

local function is_same_time(left, right)
  left, right = tonumber(left), tonumber(right)
  return left and right and math.abs(left - right) < 0.000002
end

local function later(at, seconds) return string.format('%.6f', tonumber(at) + tonumber(seconds)) end

local function read_run(running, task_id, due)
  local record = decode_record(redis.call('HGET', running, task_id))
  return record and (not due or is_same_time(record.due, due)) and record or nil
end

local function store_run(running, task_id, record, seconds)
  redis.call('HSET', running, task_id, cjson.encode(record))
  if seconds then redis.call('ZADD', deadlines, later(now, seconds), task_id .. '\0' .. running) end
end

local function forget_run(running, task_id)
  redis.call('HDEL', running, task_id)
  redis.call('ZREM', deadlines, task_id .. '\0' .. running)
end

local function members_of(run)
  local members = {'"outcome":' .. cjson.encode(run.outcome), '"ended":' .. now}
  for _, name in ipairs({'wait', 'ran', 'attempt'}) do
    if tonumber(run[name]) then members[#members + 1] = '"' .. name .. '":' .. run[name] end
  end
  for _, name in ipairs({'worker', 'delivery', 'error', 'over'}) do
    if run[name] and run[name] ~= '' then members[#members + 1] = '"' .. name .. '":' .. cjson.encode(run[name]) end
  end
  return table.concat(members, ',')
end

local function is_void(record)
  local is_reserved = record.state == 'sent' and (record.holds or not record.sent)
  return is_reserved and (tonumber(record.holds) or 0) <= tonumber(now)
end

local function find_holder(running, task_id, due, root, skips_void)
  local found, void = redis.call('HGETALL', running), {}
  for i = 1, #found, 2 do
    local other, record = found[i], found[i + 1]
    record = other ~= '' and decode_record(record)
    if record and record.state ~= 'ended' and not record.overdue then
      local is_same = other == task_id and is_same_time(record.due, due)
      local is_of = root ~= '' and other == root or record.root == (root ~= '' and root or task_id)
      if skips_void and not is_same and is_void(record) then
        void[#void + 1] = not record.sent and other or nil
      elseif not (is_same or is_of) then
        return record.root or other, record, other
      end
    end
  end
  return nil, nil, nil, void
end

local function is_over(record, delivery)
  for _, ended in ipairs(type(record.over) == 'table' and record.over or {}) do
    if ended == delivery then return true end
  end
  return type(record.after) == 'table' and record.after.delivery == delivery
end

local function expected_at(at, due, next, max)
  local next_at = tonumber(next) or 0
  local period = next_at > tonumber(due) and next_at - tonumber(due) or 3600
  local seconds = math.max(tonumber(max) or math.min(period, 3600), 60)
  return later(math.max(tonumber(at), tonumber(now)), seconds)
end
