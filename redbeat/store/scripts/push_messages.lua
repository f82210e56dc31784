-- push_messages(writes_of, first_values, refusals): make the writes of entries to their queues, those of one entry all or
-- none, and those to one queue in the order of the entries; not a script of its own, but put in front of the one that
-- needs it, which has queues, values, home_db and broker_db.
-- writes_of has for each entry a list of a command and which of the queues it is made to, false for none; first_values
-- where their values begin, one for each. refusals gets the server's error for each entry whose writes were refused.
local function push_messages(writes_of, first_values, refusals)
  local waiting = {}
  local function push_waiting()  -- what goes to one queue in few calls, as each costs as much as ten more values
    for queue, those in pairs(waiting) do
      local reply = redis.pcall('LPUSH', queue, unpack(those.messages))
      for _, place in ipairs(type(reply) == 'table' and those.places or {}) do refusals[place] = reply.err end
    end
    waiting = {}
  end
  local function push_all(writes, first)
    local done = {}
    for place, write in ipairs(writes) do
      local command, queue = write[1], queues[write[2]]
      local reply = redis.pcall(command == 'lpush' and 'LPUSH' or 'PEXPIRE', queue, values[first + place - 1])
      if type(reply) == 'table' then
        for _, pushed in ipairs(done) do redis.pcall('LPOP', pushed) end
        return reply.err
      end
      if command == 'lpush' then done[#done + 1] = queue end
    end
  end

  local selected = broker_db ~= home_db and redis.pcall('SELECT', broker_db)
  for place = 1, #writes_of do
    local writes = writes_of[place]
    if not writes then
      -- nothing is sent
    elseif selected and selected.err then
      refusals[place] = selected.err
    elseif #writes == 1 and writes[1][1] == 'lpush' then
      local queue = queues[writes[1][2]]
      local those = waiting[queue]
      if not those then
        those = {messages = {}, places = {}}
        waiting[queue] = those
      end
      local next = #those.places + 1
      those.messages[next], those.places[next] = values[first_values[place]], place
    else
      push_waiting()
      refusals[place] = push_all(writes, first_values[place])
    end
  end
  push_waiting()
  if selected and not selected.err then redis.call('SELECT', home_db) end
end

