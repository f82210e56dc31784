-- check_mover: refuses what follows if another process moves entries of this part by now; not a script of its own.
if redis.call('GET', mover) ~= token then
  return redis.error_reply('MOVER Another process moves the entries of this part by now.')
end

