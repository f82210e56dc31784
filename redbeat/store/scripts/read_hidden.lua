-- read_hidden: read what a part has hidden of entries that are on their way to another part, all of one move.
--
-- Uses check_mover, clock, move_keys
-- KEYS mover   token of who moves entries out of this part, and into it
-- KEYS moving  hash: name of each hidden entry, to JSON: what it was in this part
-- ARGV token   the caller's
-- ARGV limit   how many entries at most
-- ARGV kinds   how keys begin that are moved, by their kinds: key; hidden: while they are hidden; unmoved: what can't be
--              merged. The name of an entry follows, or ''
-- The keys that are read are made of what kinds says and what the records in moving say.
--
-- Returns a list: of each entry its name, 'hidden', the record in moving, and four for each key, as hide_entries does

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
    dump_hidden(row, record.kept)
    rows[#rows + 1] = row
  end
end
return rows
