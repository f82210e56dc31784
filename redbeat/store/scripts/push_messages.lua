-- push_messages(entries, before_queues, home_db, broker_db): make the writes of entries to their queues, those of one
-- entry all or none, and those to one queue in the order of the entries; not a script of its own, but put in front of the
-- one that needs it.
-- entries have each first and pushes: where its writes are in ARGV, and how many; three values each: command, queue
-- (KEYS[before_queues + queue]), value.
-- Returns for each entry whose writes were refused, by its place, the server's error.
local function push_messages(entries, before_queues, home_db, broker_db)
  local refusals, queues, waiting = {}, {}, {}
  local function push_waiting()  -- what goes to one queue in few calls, as each costs as much as ten more values
    for _, queue in ipairs(queues) do
      local messages, places = waiting[queue].messages, waiting[queue].places
      for first = 1, #messages, 1000 do
        local last = math.min(first + 999, #messages)
        local reply = redis.pcall('LPUSH', queue, unpack(messages, first, last))
        for i = type(reply) == 'table' and first or last + 1, last do refusals[places[i]] = reply.err end
      end
    end
    queues, waiting = {}, {}
  end
  local function push_all(first, count)
    local done = {}
    for at = first, first + 3 * (count - 1), 3 do
      local command, queue, value = ARGV[at], KEYS[before_queues + tonumber(ARGV[at + 1])], ARGV[at + 2]
      local reply = redis.pcall(command == 'lpush' and 'LPUSH' or 'PEXPIRE', queue, value)
      if type(reply) == 'table' then
        for _, pushed in ipairs(done) do redis.pcall('LPOP', pushed) end
        return reply.err
      end
      if command == 'lpush' then done[#done + 1] = queue end
    end
  end

  local selected = broker_db ~= home_db and redis.pcall('SELECT', broker_db)
  for place, entry in ipairs(entries) do
    local first, pushes = entry.first, entry.pushes
    if pushes > 0 and selected and selected.err then
      refusals[place] = selected.err
    elseif pushes == 1 and ARGV[first] == 'lpush' then
      local queue = KEYS[before_queues + tonumber(ARGV[first + 1])]
      if not waiting[queue] then
        queues[#queues + 1] = queue
        waiting[queue] = {messages = {}, places = {}}
      end
      table.insert(waiting[queue].messages, ARGV[first + 2])
      table.insert(waiting[queue].places, place)
    elseif pushes > 0 then
      push_waiting()
      refusals[place] = push_all(first, pushes)
    end
  end
  push_waiting()
  if selected and not selected.err then redis.call('SELECT', home_db) end
  return refusals
end

