-- merge_values(kind, home, arrived, is_foreign): add what stands under the key arrived, from another part, to what stands under
-- home. is_foreign: it was written where the entry was before, by somebody who doesn't know the layout, so it is newer than
-- what stands here; else what stands here is newer.
-- What is newer has the definition, and bookkeeping is that of the entry itself, so no run is forgotten. Returns nil, or
-- the text 'refused': the two can't be merged, and what stands at home stays.
-- merge_events(home, told, arrived, told_arrived): likewise of the stream of events, and up to where it was told of. Returns the
-- key that is to be told, or nil if that stays.
-- Not scripts of their own, but put in front of those that write entries that were moved.
local most_failures = 10000
-- no command takes more than about 8000 arguments here
local most_fields = 7000

local function fields_of(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end

local is_of_writers = {definition = true, policy = true, owner = true, message = true, body_bytes = true, revision = true}

-- the entry's hash: those who write entries have some fields, and theirs count where they are newer; the others are beat's
local function merge_entry(home, theirs, is_foreign)
  local ours = fields_of(redis.call('HGETALL', home))
  local newer, before = is_foreign and theirs or ours, is_foreign and ours or theirs
  local is_changed = newer.definition and newer.definition ~= before.definition or (newer.policy or before.policy) ~= before.policy
  for field, value in pairs(theirs) do
    local counts = is_foreign == (is_of_writers[field] or false)
    if field ~= 'meta_crc32' and (counts or (field ~= 'error' and not ours[field])) then
      redis.call('HSET', home, field, value)
      if field == 'meta' then set_field(home, 'meta_crc32', theirs.meta_crc32 or '') end
    end
  end
  if is_changed then redis.call('HDEL', home, 'error') end
end

local function merge_fields(home, theirs, is_foreign)
  for field, value in pairs(theirs) do redis.call(is_foreign and 'HSET' or 'HSETNX', home, field, value) end
end

local function merge_counts(home, theirs)
  for field, value in pairs(theirs) do
    if string.match(value, '^%d+$') and #value < 18 then redis.pcall('HINCRBY', home, field, value) end
  end
end

-- minutes of the last hour: numbers of the same minute are added, else the later minute stays
local function merge_minutes(home, theirs)
  for slot, text in pairs(theirs) do
    local is_read, minute = pcall(cjson.decode, text)
    local is_ours, ours = pcall(cjson.decode, redis.call('HGET', home, slot) or '')
    local has_sense = is_read and type(minute) == 'table' and tonumber(minute.minute) and type(minute.counted) == 'table'
    is_ours = is_ours and type(ours) == 'table' and tonumber(ours.minute) and type(ours.counted) == 'table'
    if has_sense and is_ours and ours.minute == minute.minute then
      for word, amount in pairs(minute.counted) do
        if type(amount) == 'number' then ours.counted[word] = (tonumber(ours.counted[word]) or 0) + amount end
      end
      redis.call('HSET', home, slot, cjson.encode(ours))
    elseif has_sense and not (is_ours and ours.minute > minute.minute) then
      redis.call('HSET', home, slot, text)
    end
  end
end

local merge_of_kind = {entry = merge_entry, totals = merge_counts, figures = merge_counts, minutes = merge_minutes}
local function merge_hashes(home, arrived, kind, is_foreign)
  local merge = merge_of_kind[kind] or merge_fields
  merge(home, fields_of(redis.call('HGETALL', arrived)), is_foreign)
end

local function is_before(left, right) return left[1] < right[1] or (left[1] == right[1] and left[2] < right[2]) end

-- histories: the newest first, each record with its time
local function merge_lists(home, arrived)
  local rows = {}
  for _, key in ipairs({home, arrived}) do
    for _, text in ipairs(redis.call('LRANGE', key, 0, -1)) do
      rows[#rows + 1] = {tonumber(string.match(text, '"at":([%d.e+]+)') or 0) or 0, -#rows, text}
    end
  end
  table.sort(rows, function(left, right) return is_before(right, left) end)
  redis.call('DEL', home)
  for _, row in ipairs(rows) do redis.call('RPUSH', home, row[3]) end
end

-- the stream of failures: each keeps its time
local function merge_streams(home, arrived)
  local rows, last_ms, last_number = {}, 0, 0
  for _, key in ipairs({home, arrived}) do
    for _, row in ipairs(redis.call('XRANGE', key, '-', '+')) do
      if #row[2] > most_fields then return 'refused' end
      local ms, number = string.match(row[1], '^(%d+)-(%d+)$')
      rows[#rows + 1] = {tonumber(ms), tonumber(number), row[2]}
    end
  end
  table.sort(rows, is_before)
  redis.call('DEL', home)
  for i = math.max(1, #rows - most_failures + 1), #rows do
    local ms, number = rows[i][1], rows[i][2]
    if ms < last_ms or (ms == last_ms and number <= last_number) then ms, number = last_ms, last_number + 1 end
    last_ms, last_number = ms, number
    redis.call('XADD', home, string.format('%.0f-%.0f', ms, number), unpack(rows[i][3]))
  end
end

local function merge_sets(home, arrived) redis.call('SUNIONSTORE', home, home, arrived) end

local function merge_strings(home, arrived, kind)
  if kind ~= 'failing' then return end
  local ours, theirs = redis.call('GET', home), redis.call('GET', arrived)
  if string.match(ours, '^%d+$') and string.match(theirs, '^%d+$') and #ours + #theirs < 24 then
    redis.call('INCRBY', home, theirs)
  end
end

local merge_of_type = {
  hash = merge_hashes, list = merge_lists, set = merge_sets, string = merge_strings, stream = merge_streams,
}
local function merge_values(kind, home, arrived, is_foreign)
  local type_ = redis.call('TYPE', arrived).ok
  local merge = merge_of_type[type_]
  if not merge or type_ ~= redis.call('TYPE', home).ok then return 'refused' end
  return merge(home, arrived, kind, is_foreign)
end

-- the stream of events: what was told of stays behind, and the rest is told of here
local function merge_events(home, told, arrived, told_arrived)
  if not told_arrived then return nil end
  local told_id, told_here = string.match(redis.call('GET', told_arrived) or '', '^%d+%-%d+') or '0-0', nil
  if redis.call('EXISTS', told) == 0 then
    local last = redis.call('XREVRANGE', home, '+', '-', 'COUNT', 1)[1]
    redis.call('SET', told_arrived, last and last[1] or '0-0', 'PX', 604800000)
    told_here = told_arrived
  end
  local untold = redis.call('XREAD', 'STREAMS', arrived, told_id)
  for _, row in ipairs(untold and untold[1][2] or {}) do
    if #row[2] <= most_fields then redis.call('XADD', home, 'MAXLEN', '~', 10000, '*', unpack(row[2])) end
  end
  return told_here
end

