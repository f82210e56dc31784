-- push_messages(first, pushes, before_queues, home_db, broker_db): make one entry's writes to its queues, all or none;
-- not a script of its own, but put in front of the one that needs it.
-- The writes are ARGV[first..], three each: command, queue (KEYS[before_queues + queue]), value.
-- Returns nil, or the server's error when a write was refused; the writes before it are then undone.
local function push_messages(first, pushes, before_queues, home_db, broker_db)
  if broker_db ~= home_db then
    local selected = redis.pcall('SELECT', broker_db)
    if selected.err then return selected.err end
  end
  local done, refused = {}, nil
  for p = first, first + 3 * (pushes - 1), 3 do
    local command, queue, value = ARGV[p], KEYS[before_queues + tonumber(ARGV[p + 1])], ARGV[p + 2]
    local reply
    if command == 'lpush' then
      reply = redis.pcall('LPUSH', queue, value)
    else
      reply = redis.pcall('PEXPIRE', queue, value)
    end
    if type(reply) == 'table' and reply.err then
      refused = reply.err
      break
    end
    if command == 'lpush' then done[#done + 1] = queue end
  end
  if refused then
    for _, queue in ipairs(done) do redis.pcall('LPOP', queue) end
  end
  if broker_db ~= home_db then redis.call('SELECT', home_db) end
  return refused
end

