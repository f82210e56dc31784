-- reserve_runs: note runs as in progress whose messages are about to be published, unless other runs hold them back.
--
-- Uses check_layout, clock, hold_lock, run_records, find_hold
-- KEYS deadlines     zset of when beat must look at each run in progress
-- KEYS running[]     hashes of an entry's runs in progress, by task id: one for each run
-- ARGV rows          of each run:
--   task_id
--   due              when it is due, UNIX seconds
--   members          of its record, besides its state and when it was sent
--   overlap          'allow': nothing holds it back, and it is noted as sent; 'published': it was reserved, and its message
--                    has been published since: it is noted as sent; else find_hold says whether it is
--   seconds          how long its record is kept if nothing more is heard of it
--   holds_seconds    how long the reservation holds other runs back; 0: the next run takes its place
-- A run that is held back waits then, or doesn't, as commit_runs has it.
--
-- Returns {status, answers}
--   status    'ok', 'retaken' when the lock was gone and the caller has taken it back, or 'lost' when another token
--             holds it (then the rest is empty)
--   answers   for each entry 'reserved'; 'known' when the run has been published already: a worker has begun it, or it
--             was recorded as sent; 'held ' and the members of its record that say by what; 'refused ' and why its
--             entry's runs can't be read; 'gone' with 'published' when another run has taken its place
if status == 'lost' then return {status, {}} end

local answers = {}
for i, run in ipairs(rows) do
  local is_known, answer = pcall(reserve_run, running[i], run)
  answers[i] = is_known and answer or 'refused ' .. refusal_of(running[i], answer)
end
return {status, answers}
