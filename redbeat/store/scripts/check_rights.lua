-- check_rights: return which commands the caller may not send; nothing is written.
--
-- ARGV calls  each a list of a command and its arguments
--
-- Returns the places of those calls in the list, from 1; nil where the server doesn't tell (Redis before 7.0)
if not redis.acl_check_cmd then return nil end
local denied = {}
for place, words in ipairs(calls) do
  local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if known and not allowed then denied[#denied + 1] = place end
end
return denied
