-- replace_calendar: store a calendar in place of what is under its key, or remove it, and wake the beat.
--
-- Uses match_calendar
-- KEYS calendar  the calendar's key
-- ARGV wake      channel on which the change is announced
-- ARGV read      what the caller has read: its fields, or the type of its key; nil: don't compare
-- ARGV fields    days, spans and 'about' to their labels; without any field the calendar is removed
--
-- Returns 1 when the key existed, else 0; -1 when the calendar has changed since it was read (then nothing was
-- written)
if read and not match_calendar(calendar, read) then return -1 end
local removed = redis.call('DEL', calendar)
for day, label in pairs(fields) do redis.call('HSET', calendar, day, label) end
-- without the right to publish the change is made all the same, and noticed a little later
redis.pcall('PUBLISH', wake, 'calendar')
return removed
