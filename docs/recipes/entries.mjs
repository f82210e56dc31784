// The entry "report", from Node. Needs: npm install redis
// REDIS_URL is what redbeat_redis_url is in your configuration.
//   REDIS_URL=redis://127.0.0.1:6379/0 node entries.mjs add|change|pause|resume|delete
import { createClient } from 'redis';

const SCHEDULE = 'redbeat::schedule';
const WAKE = 'redbeat::wake';
const KEY = 'redbeat:report';

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

// Read the definition, change it, and write the whole of it back. With `run`, the entry is due at once.
async function update(change, { run }) {
  const stored = await client.hGet(KEY, 'definition');
  if (!stored) throw new Error(`${KEY}: there is no such entry`);
  const definition = change(JSON.parse(stored));
  const writes = client.multi().hSet(KEY, 'definition', JSON.stringify(definition));
  if (run) writes.zAdd(SCHEDULE, { score: 0, value: KEY });
  await writes.publish(WAKE, 'update').exec();
}

async function remove() {
  await client.multi().zRem(SCHEDULE, KEY).del(KEY).publish(WAKE, 'delete').exec();
}

const commands = {
  add,
  change: () => update(
    (definition) => ({ ...definition, args: ['daily'], schedule: { ...definition.schedule, every: 30 } }),
    { run: true },
  ),
  pause: () => update((definition) => ({ ...definition, enabled: false }), { run: false }),
  resume: () => update((definition) => ({ ...definition, enabled: true }), { run: true }),
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
