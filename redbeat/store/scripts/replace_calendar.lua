-- replace_calendar: store a calendar in place of what is under its key, or remove it, and wake the beat.
--
-- KEYS[1] calendar  the calendar's key
-- ARGV[1] wake      channel on which the change is announced
-- ARGV[2] read      JSON of what the caller has read: its fields, or the type of its key; '': don't compare
-- ARGV[3..] two for each field:
--   day             a day or a span, or 'about'; without any field the calendar is removed
--   label           its label
--
-- Returns 1 when the key existed, else 0; -1 when the calendar has changed since it was read (then nothing was
-- written)
local calendar = KEYS[1]
local wake, read = ARGV[1], ARGV[2]

if read ~= '' and not match_calendar(calendar, cjson.decode(read)) then return -1 end
local removed = redis.call('DEL', calendar)
for at = 3, #ARGV, 2 do
  local day, label = ARGV[at], ARGV[at + 1]
  redis.call('HSET', calendar, day, label)
end
-- without the right to publish the change is made all the same, and noticed a little later
redis.pcall('PUBLISH', wake, 'calendar')
return removed
