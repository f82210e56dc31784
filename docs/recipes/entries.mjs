// The entry "report", from Node. Needs: npm install redis
// REDIS_URL is what redbeat_redis_url is in your configuration.
//   REDIS_URL=redis://127.0.0.1:6379/0 node entries.mjs add|change|pause|resume|run|history|delete
import { createClient } from 'redis';

const SCHEDULE = 'redbeat::schedule';
const WAKE = 'redbeat::wake';
const KEY = 'redbeat:report';
const HISTORY = 'redbeat::history:report';
const BACKFILLED = 'redbeat::backfilled:report';

if (!process.env.REDIS_URL) {
  console.error('entries.mjs: REDIS_URL is not set; use the value of redbeat_redis_url');
  process.exit(2);
}
const client = createClient({ url: process.env.REDIS_URL });

async function add() {
  const definition = {
    name: 'report',
    task: process.env.TASK ?? 'proj.tasks.report',
    schedule: { __type__: 'interval', every: 60, relative: false },
    args: ['weekly'],
    kwargs: {},
    options: {},
    enabled: true,
  };
  await client.multi()
    .hSet(KEY, 'definition', JSON.stringify(definition))
    .zAdd(SCHEDULE, { score: 0, value: KEY }) // due at once; or UNIX seconds
    .publish(WAKE, 'add') // optional: beat looks at once, and not only within a second
    .exec();
}

// Read the definition and the policy, change them, and write the whole of both back. With `run`, the entry is
// due at once. Undefined: a key that JSON leaves out.
async function update(change, { policy = {}, run }) {
  const stored = await client.hmGet(KEY, ['definition', 'policy']);
  if (!stored[0]) throw new Error(`${KEY}: there is no such entry`);
  const writes = client.multi()
    .hSet(KEY, 'definition', JSON.stringify(change(JSON.parse(stored[0]))))
    .hSet(KEY, 'policy', JSON.stringify({ ...JSON.parse(stored[1] ?? '{}'), ...policy }));
  if (run) writes.zAdd(SCHEDULE, { score: 0, value: KEY }, { XX: true }); // never bring back what was deleted
  await writes.publish(WAKE, 'update').exec();
}

async function history() {
  for (const record of await client.lRange(HISTORY, 0, -1)) console.log(record); // JSON, the newest run first
}

async function remove() {
  await client.multi()
    .zRem(SCHEDULE, KEY)
    .del([KEY, HISTORY, BACKFILLED])
    .publish(WAKE, 'delete')
    .exec();
}

const commands = {
  add,
  change: () => update(
    (definition) => ({ ...definition, args: ['daily'], schedule: { ...definition.schedule, every: 30 } }),
    { run: true },
  ),
  // `enabled` is for celery-redbeat 2.x, too; `paused_until`, ISO 8601, would end the pause by itself
  pause: () => update(
    (definition) => ({ ...definition, enabled: false }),
    { policy: { paused: true, pause_note: 'the numbers are wrong' }, run: false },
  ),
  resume: () => update(
    (definition) => ({ ...definition, enabled: true }),
    { policy: { paused: undefined, pause_note: undefined, paused_by: undefined, paused_until: undefined }, run: true },
  ),
  run: () => client.multi().zAdd(SCHEDULE, { score: 0, value: KEY }, { XX: true }).publish(WAKE, 'run').exec(),
  history,
  delete: remove,
};

const command = commands[process.argv[2]];
if (!command) {
  console.error(`usage: REDIS_URL=... node entries.mjs ${Object.keys(commands).join('|')}`);
  process.exit(2);
}
await client.connect();
try {
  await command();
} finally {
  client.destroy ? client.destroy() : await client.disconnect();
}
