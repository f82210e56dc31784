-- read_short: return what a command reads of each of several keys, without texts that are too long to be RedBeat's own.
--
-- KEYS keys[]
-- ARGV words       the command, and what follows the key: 'LRANGE', '0' and '9'
-- ARGV text_bytes  a longer text is left out
-- ARGV is_strict   a key of another type is an error; else it counts as empty
--
-- Returns for each key a list of texts
local replies = {}
for i, key in ipairs(keys) do
  local found, short = redis.pcall(words[1], key, unpack(words, 2)), {}
  local error = type(found) == 'table' and found.err
  if error and (is_strict or not string.find(error, 'WRONGTYPE', 1, true)) then return found end
  for _, text in ipairs(type(found) == 'table' and found or {found or nil}) do
    if #text <= text_bytes then short[#short + 1] = text end
  end
  replies[i] = short
end
return replies
