-- add_figure(figures, labels, words, amount): add to figures of the metrics, under the id of their labels ('' for all
-- others). Of several words, with '+' between, each is counted: one command instead of several.
-- seconds_of(value): a length of time that can be counted. micros_of(seconds): what is added to a histogram's sum.
-- bucket_of(bounds, seconds): which of a histogram's buckets it is in, 1 for the first.
-- Not scripts of their own, but put in front of those that need them. What can't be counted costs nothing else. The
-- bounds stand in redbeat/store/figures.py, too, where each figure is explained.
local late_bounds = {0.01, 0.1, 0.5, 1, 5, 30, 300, 3600}
local length_bounds = {0.1, 1, 10, 60, 300, 1800, 7200}

local function add_figure(figures, labels, words, amount)
  redis.pcall('HINCRBY', figures, labels .. ':' .. words, amount)
end

local function seconds_of(value) return math.min(math.max(tonumber(value) or 0, 0), 1e9) end

local function micros_of(seconds) return math.floor(seconds * 1000000) end

local function bucket_of(bounds, seconds)
  local bucket = 1
  while bounds[bucket] and seconds > bounds[bucket] do bucket = bucket + 1 end
  return bucket
end

