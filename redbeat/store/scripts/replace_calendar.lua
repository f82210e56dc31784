-- replace_calendar: store a calendar in place of what its key holds, or remove it, and tell the beat.
--
-- KEYS[1] calendar  the calendar's key
-- ARGV[1] wake      channel that is told
-- ARGV[2] read      JSON of what the caller read: its fields, or the type of its key; '' for whatever it is
-- ARGV[3..] two for each field:
--   day             a day or span, or 'about'; none of them at all: the calendar is removed
--   label           what it is called
--
-- Returns 1 when there was something under the key, else 0; -1 when it is another one than was read (then nothing
-- was written)
local calendar = KEYS[1]
local wake, read = ARGV[1], ARGV[2]

if read ~= '' and not match_calendar(calendar, cjson.decode(read)) then return -1 end
local removed = redis.call('DEL', calendar)
for at = 3, #ARGV, 2 do
  local day, label = ARGV[at], ARGV[at + 1]
  redis.call('HSET', calendar, day, label)
end
-- a wake-up only makes it quicker: who may not publish may still save
redis.pcall('PUBLISH', wake, 'calendar')
return removed
