// The entry "report", from Node. Needs: npm install redis
// REDIS_URL is what redbeat_redis_url is in your configuration.
//   REDIS_URL=redis://127.0.0.1:6379/0 node entries.mjs add|change|pause|resume|run|history|delete
import { createClient } from 'redis';

const NAME = 'report';
const BASE = 'redbeat:'; // in a cluster '{redbeat}:', and createCluster

if (!process.env.REDIS_URL) {
  console.error('entries.mjs: REDIS_URL is not set; use the value of redbeat_redis_url');
  process.exit(2);
}
const client = createClient({ url: process.env.REDIS_URL });
let keys;

// CRC-16 (XMODEM) of the bytes of a name
function crc16(name) {
  let crc = 0;
  for (const byte of Buffer.from(name)) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
    crc &= 0xffff;
  }
  return crc;
}

// The entry's keys where the schedule is in so many shards; none, '0' or null: it isn't divided.
function keysIn(shards) {
  const prefix = Number(shards) ? `{redbeat:${crc16(NAME) % Number(shards)}}:` : BASE;
  return {
    entry: prefix + NAME,
    schedule: `${prefix}:schedule`,
    wake: `${prefix}:wake`,
    history: `${prefix}:history:${NAME}`,
    backfilled: `${prefix}:backfilled:${NAME}`,
  };
}

// While the number of shards is changed, the entry may still be where it was before.
async function findKeys() {
  const [shards, state, former] = await client.hmGet(`${BASE}:layout`, ['shards', 'state', 'former']);
  const before = keysIn(former);
  return state === 'moving' && await client.exists(before.entry) ? before : keysIn(shards);
}

async function add() {
  const definition = {
    name: NAME,
    task: process.env.TASK ?? 'proj.tasks.report',
    schedule: { __type__: 'interval', every: 60, relative: false },
    args: ['weekly'],
    kwargs: {},
    options: {},
    enabled: true,
  };
  await client.multi()
    .hSet(keys.entry, 'definition', JSON.stringify(definition))
    .zAdd(keys.schedule, { score: 0, value: keys.entry }) // due at once; or UNIX seconds
    .publish(keys.wake, 'add') // optional: beat looks at once, and not only within a second
    .exec();
}

// Read the definition and the policy, change them, and write the whole of both back. With `run`, the entry is
// due at once. Undefined: a key that JSON leaves out.
async function update(change, { policy = {}, run }) {
  const stored = await client.hmGet(keys.entry, ['definition', 'policy']);
  if (!stored[0]) throw new Error(`${keys.entry}: there is no such entry`);
  const writes = client.multi()
    .hSet(keys.entry, 'definition', JSON.stringify(change(JSON.parse(stored[0]))))
    .hSet(keys.entry, 'policy', JSON.stringify({ ...JSON.parse(stored[1] ?? '{}'), ...policy }));
  if (run) writes.zAdd(keys.schedule, { score: 0, value: keys.entry }, { XX: true }); // never bring back what was deleted
  await writes.publish(keys.wake, 'update').exec();
}

async function history() {
  for (const record of await client.lRange(keys.history, 0, -1)) console.log(record); // JSON, the newest run first
}

async function remove() {
  await client.multi()
    .zRem(keys.schedule, keys.entry)
    .del([keys.entry, keys.history, keys.backfilled])
    .publish(keys.wake, 'delete')
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
  run: () => client.multi().zAdd(keys.schedule, { score: 0, value: keys.entry }, { XX: true }).publish(keys.wake, 'run').exec(),
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
  keys = await findKeys();
  await command();
} finally {
  client.destroy ? client.destroy() : await client.disconnect();
}
