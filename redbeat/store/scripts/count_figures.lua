-- add_figure(figures, labels, word, amount): add to a figure of the metrics, under the id of its labels ('' for all others).
-- add_seconds(figures, labels, what, seconds, times): add a length of time to one of the histograms below, so many times.
-- Not scripts of their own, but put in front of those that need them. What can't be counted costs nothing else. The
-- bounds stand in redbeat/store/figures.py, too, where each figure is explained.
local bounds_of = {
  late = {0.01, 0.1, 0.5, 1, 5, 30, 300, 3600},
  ran = {0.1, 1, 10, 60, 300, 1800, 7200},
  wait = {0.1, 1, 10, 60, 300, 1800, 7200},
}

local function add_figure(figures, labels, word, amount)
  redis.pcall('HINCRBY', figures, labels .. ':' .. word, string.format('%.0f', amount))
end

local function add_seconds(figures, labels, what, seconds, times)
  seconds = math.min(math.max(tonumber(seconds) or 0, 0), 1e9)
  local bounds, bucket = bounds_of[what], 1
  while bounds[bucket] and seconds > bounds[bucket] do bucket = bucket + 1 end
  add_figure(figures, labels, what .. '/' .. bucket, times)
  add_figure(figures, labels, what .. '/sum', math.floor(seconds * 1000000) * times)
end

