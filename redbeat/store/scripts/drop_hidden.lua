-- drop_hidden: remove what a part has hidden of entries that were written to another part.
--
-- KEYS[1] mover    token of who moves entries out of this part, and into it
-- KEYS[2] moving   hash: name of each hidden entry, to JSON: what it was in this part
-- ARGV[1] prefix   what every entry's key starts with
-- ARGV[2] token    the caller's
-- ARGV[3] move     the id of the move
-- ARGV[4] count    how many entries there are
-- ARGV[5..] names  their names
--
-- Returns how many were dropped
local mover, moving = KEYS[1], KEYS[2]
local prefix, token, move, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

check_mover(mover, token)
local dropped = 0
for place = 5, 4 + count do
  local name = ARGV[place]
  local text = redis.call('HGET', moving, name)
  local record = text and cjson.decode(text)
  if record and record.id == move then
    for _, rest in ipairs(record.rests) do redis.call('UNLINK', prefix .. ':moving:' .. rest) end
    redis.call('HDEL', moving, name)
    dropped = dropped + 1
  end
end
return dropped
