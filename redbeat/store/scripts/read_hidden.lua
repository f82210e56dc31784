-- read_hidden: read what a part has hidden of entries that are on their way to another part, all of one move.
--
-- KEYS[1] mover    token of who moves entries out of this part, and into it
-- KEYS[2] moving   hash: name of each hidden entry, to JSON: what it was in this part
-- ARGV[1] token    the caller's
-- ARGV[2] limit    how many entries at most
-- ARGV[3..] kinds  as take_kinds takes them
-- The keys that are read are made of what kinds says and what the records in moving say.
--
-- Returns a list: of each entry its name, 'hidden', the record in moving, and four for each key, as hide_entries does
local mover, moving = KEYS[1], KEYS[2]
local token, limit = ARGV[1], tonumber(ARGV[2])

check_mover(mover, token)
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local kinds = take_kinds(3)
local found, rows, move = redis.call('HGETALL', moving), {}, nil
for place = 1, #found, 2 do
  local is_read, record = pcall(cjson.decode, found[place + 1])
  if not is_read or type(record) ~= 'table' or not (record.id and record.to and record.at) then
    rows = {{found[place], 'hidden', found[place + 1]}}  -- it is nobody's, which the caller says
    break
  end
  move = move or record.id
  if record.id == move and #rows < limit then
    local row = {found[place], 'hidden', found[place + 1]}
    dump_hidden(row, kinds, record.kept, now_ms)
    rows[#rows + 1] = row
  end
end
return rows
