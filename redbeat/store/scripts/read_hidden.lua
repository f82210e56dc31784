-- read_hidden: read what a part has hidden of entries that are on their way to another part.
--
-- KEYS[1] mover   token of who moves entries out of this part, and into it
-- KEYS[2] moving  hash: name of each hidden entry, to JSON: what it was in this part
-- ARGV[1] prefix  what every entry's key starts with
-- ARGV[2] token   the caller's
-- ARGV[3] move    only those of this move; '': of the one that is met first
-- ARGV[4] limit   how many entries at most
--
-- Returns a list: of each entry its name, 'hidden', the record in moving, and three for each key, as hide_entries does
local mover, moving = KEYS[1], KEYS[2]
local prefix, token, move, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

check_mover(mover, token)
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local found, rows = redis.call('HGETALL', moving), {}
for i = 1, #found, 2 do
  local name, record = found[i], cjson.decode(found[i + 1])
  if move == '' then move = record.id end
  if record.id == move and #rows < limit then
    local row = {name, 'hidden', found[i + 1]}
    for _, rest in ipairs(record.rests) do
      local hidden = prefix .. ':moving:' .. rest
      local payload, rest_ms = redis.call('DUMP', hidden), redis.call('PTTL', hidden)
      if payload then  -- else its time is over
        local length = #row
        row[length + 1], row[length + 3] = rest, payload
        row[length + 2] = rest_ms < 0 and '0' or string.format('%.0f', now_ms + rest_ms)
      end
    end
    rows[#rows + 1] = row
  end
end
return rows
