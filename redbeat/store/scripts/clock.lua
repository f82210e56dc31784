-- now: the server's clock, UNIX seconds with microseconds, a text; never a whole second, which might be taken for a
-- score that celery-redbeat 2.x has rounded. Not a script of its own, but put in front of those that need it.
local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), math.max(tonumber(time[2]), 1))

