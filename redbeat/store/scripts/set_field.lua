-- set_field(key, field, value): set a field of a hash, or remove it if its value is ''; nil leaves it as it is.
-- Not a script of its own, but put in front of those that need it.
local function set_field(key, field, value)
  if value == '' then
    redis.call('HDEL', key, field)
  elseif value then
    redis.call('HSET', key, field, value)
  end
end

