-- reserve_runs: note runs as in progress whose messages are about to be published, unless other runs hold them back.
--
-- KEYS[1] schedule   zset of entry keys, scored by due time
-- KEYS[2] lock       the leader's token (the schedule's key again when no lock is configured)
-- KEYS[3] mark       who has released the lock (the lock's key again when nothing says so)
-- KEYS[4] deadlines  zset of when beat must look at each run in progress
-- KEYS[5..] running  hashes of an entry's runs in progress, by task id
-- ARGV[1] token      the caller's token, '' when no lock is configured, or the caller isn't beat
-- ARGV[2] lock_ms    time to live the lock is renewed to, milliseconds
-- ARGV[3..] six for each entry:
--   task_id          its run's
--   due              when that is due, UNIX seconds
--   run              members of its record, besides its state and when it was sent
--   overlap          the entry's policy: 'skip', 'buffer_one' or 'replace'; 'allow': nothing holds it back, and it is noted
--                    as sent; 'published': it was reserved, and its message has been published since: it is noted as sent
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
local schedule, lock, mark, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, lock_ms = ARGV[1], ARGV[2]

local status = hold_lock(lock, mark, token, lock_ms)
if status == 'lost' then return {status, {}} end
local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))

local answers = {}
for i = 5, #KEYS do
  local running, at = KEYS[i], 3 + (i - 5) * 6
  local task_id, due, run, overlap, seconds = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local holds_seconds = ARGV[at + 5]
  local asked = {
    task_id = task_id, due = due, overlap = overlap, members = run, seconds = seconds, holds_seconds = holds_seconds,
  }
  local is_known, answer = pcall(reserve_run, deadlines, running, asked, now)
  answers[i - 4] = is_known and answer or 'refused ' .. refusal_of(running, answer)
end
return {status, answers}
