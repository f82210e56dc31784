-- check_layout: refuses what follows unless entries are where the caller takes them to be; not a script of its own, but
-- put in front of those that write.
-- The last key and the last argument are for this alone, and are taken away: the part's generation key, and what it
-- holds as long as the caller is right; '': there is no such key; '-': it isn't asked.
local generation_key, generation = table.remove(KEYS), table.remove(ARGV)
if generation ~= '-' then
  local found = redis.call('GET', generation_key) or ''
  if found ~= generation then
    return redis.error_reply('RESHARDED ' .. generation_key .. ' holds "' .. found .. '", not "' .. generation .. '".')
  end
end

