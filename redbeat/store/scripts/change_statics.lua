-- change_statics: store which entries come from beat_schedule, and who owns them.
--
-- Uses check_layout, hold_lock
-- KEYS statics        set of those entries' names
-- KEYS static_owners  set of 'owner, tab, name': whose beat_schedule has an entry
-- ARGV change         'add'; 'release': the owner doesn't own them any more; 'remove': nobody does
-- ARGV owner          their owner
-- ARGV names          of the entries
--
-- Returns 'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
-- holds it (then nothing was written)
if status == 'lost' then return status end

-- first of all, as this fails before anything is written if these aren't sets; no name is ''
redis.call('SREM', static_owners, '')
if change ~= 'release' then redis.call(change == 'add' and 'SADD' or 'SREM', statics, unpack(names)) end
local owned = {}
for i, name in ipairs(names) do owned[i] = owner .. '\t' .. name end
redis.call(change == 'add' and 'SADD' or 'SREM', static_owners, unpack(owned))
return status
