-- read_upcoming: read usual entries that fall due soon, the earliest first; nothing is written.
--
-- Uses clock, entry_texts, read_entry, read_scores
-- KEYS schedule      zset of entry keys, scored by due time
-- KEYS again[]       keys of entries that are read besides, if they fall due in that time
-- ARGV seconds       how far to look ahead
-- ARGV after         score to begin at; '' or a time that is over: the time now
-- ARGV offset        how many members with that score or a higher one to leave out, if it isn't over
-- ARGV limit         how many members to look at
-- ARGV entry_bytes   an entry whose definition, meta and policy have more bytes isn't read
-- ARGV prefix        what every entry's key starts with
-- Reads the entries' hashes, whose keys are in the zset. An entry that has failed, was asked for, is hidden by another
-- beat, has a revision, or whose bare name is in the zset, too, is left out, as are members that aren't hashes.
--
-- Returns {now, scores, others, texts}
--   now     the server's clock, UNIX seconds with microseconds, a string
--   scores  of all members that were looked at from 'after' on, in order
--   others, texts  as of fetch_due, of those that were read; those of again first
local last = string.format('%.6f', tonumber(now) + seconds)
local first = after
-- what was due at a time that is over has gone from there, and mustn't be left out of what is found now
if after == '' or tonumber(after) <= tonumber(now) then first, offset = '(' .. now, 0 end
local due = redis.call('ZRANGEBYSCORE', schedule, first, last, 'WITHSCORES', 'LIMIT', offset, limit)
local scores = {}
for i = 2, #due, 2 do scores[#scores + 1] = due[i] end

local function add_row(key, nominal)
  if string.sub(key, 1, #prefix) ~= prefix then return end
  local kind, fields = read_entry(key, entry_bytes)
  if kind ~= 'hash' or not fields[1] or fields[4] or fields[5] or fields[6] then return end
  pack_entry(key, nominal, fields)
end

local wanted, names = {}, {}
local scores_again = read_scores(schedule, again)
for i, key in ipairs(again) do
  local nominal = tonumber(scores_again[i] or '')
  if nominal and nominal > tonumber(now) and nominal <= tonumber(last) then wanted[#wanted + 1] = {key, scores_again[i]} end
end
for i = 1, #due, 2 do wanted[#wanted + 1] = {due[i], due[i + 1]} end
for i, one in ipairs(wanted) do names[i] = string.sub(one[1], #prefix + 1) end
local bare = read_scores(schedule, names)
for i, one in ipairs(wanted) do
  if not bare[i] then add_row(one[1], one[2]) end
end
return {now, scores, packed()}
