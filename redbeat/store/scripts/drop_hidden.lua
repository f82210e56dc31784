-- drop_hidden: remove what a part has hidden of entries that were written to another part.
--
-- Uses check_layout, move_keys
-- KEYS mover   token of who moves entries out of this part, and into it
-- KEYS moving  hash: name of each hidden entry, to JSON: what it was in this part
-- ARGV token   the caller's
-- ARGV move    the id of the move
-- ARGV kinds   how keys begin that are moved, by their kinds: key; hidden: while they are hidden; unmoved: what can't be
--              merged. The name of an entry follows, or ''
-- ARGV names   of the entries
-- The keys that are removed are made of what kinds says and what the records in moving say.
--
-- Returns how many were dropped
check_mover(mover, token)
local dropped = 0
for _, name in ipairs(names) do
  local text = redis.call('HGET', moving, name)
  local record = text and cjson.decode(text)
  if record and record.id == move then
    for _, kept in ipairs(record.kept) do redis.call('UNLINK', kinds[kept[1]].hidden .. kept[2]) end
    redis.call('HDEL', moving, name)
    dropped = dropped + 1
  end
end
return dropped
