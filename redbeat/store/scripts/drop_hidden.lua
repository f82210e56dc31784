-- drop_hidden: remove what a part has hidden of entries that were written to another part.
--
-- KEYS[1] mover    token of who moves entries out of this part, and into it
-- KEYS[2] moving   hash: name of each hidden entry, to JSON: what it was in this part
-- ARGV[1] token    the caller's
-- ARGV[2] move     the id of the move
-- ARGV[3..] kinds  as take_kinds takes them; after them how many entries there are, and their names
-- The keys that are removed are made of what kinds says and what the records in moving say.
--
-- Returns how many were dropped
local mover, moving = KEYS[1], KEYS[2]
local token, move = ARGV[1], ARGV[2]

check_mover(mover, token)
local kinds, place = take_kinds(3)
local names, dropped = take_list(place, 1), 0
for _, one in ipairs(names) do
  local text = redis.call('HGET', moving, one[1])
  local record = text and cjson.decode(text)
  if record and record.id == move then
    for _, kept in ipairs(record.kept) do redis.call('UNLINK', kinds[kept[1]].hidden .. kept[2]) end
    redis.call('HDEL', moving, one[1])
    dropped = dropped + 1
  end
end
return dropped
