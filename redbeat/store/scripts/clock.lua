-- now: the server's clock, UNIX seconds with microseconds, a text. Not a script of its own, but put in front of those that
-- need it.
local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))

