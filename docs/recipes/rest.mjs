// The entry "report" over REST, from JavaScript (Node 18 or later; in a browser the token would be known to all).
//   URL=http://127.0.0.1:8555/api/v1 TOKEN=rb_... node rest.mjs
import { randomUUID } from 'node:crypto';

const { URL: root, TOKEN } = process.env;

async function ask(method, path, body, headers = {}) {
  const response = await fetch(root + path, {
    method,
    headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json', ...headers },
    body: body && JSON.stringify(body),
  });
  const document = await response.json();
  if (!response.ok) throw Object.assign(new Error(document.detail), { status: response.status });
  return document;
}

// A name as a part of the path: what a path can't carry is written in base64url.
function address(name) {
  const isPlain = !/[/\\%\p{C}\p{Zl}\p{Zp}]|^=|^\.{0,2}$/u.test(name);
  return isPlain ? encodeURIComponent(name) : `=${Buffer.from(name).toString('base64url')}`;
}

// Change an entry by what it is now, again if somebody else has changed it meanwhile.
async function change(name, decide) {
  for (;;) {
    const entry = await ask('GET', `/entries/${address(name)}`);
    try {
      return await ask('PATCH', `/entries/${address(name)}`, decide(entry), { 'if-match': entry.etag });
    } catch (error) {
      if (error.status !== 412) throw error;
    }
  }
}

// All entries that match, however many there are.
async function* entries(match) {
  let path = `/entries?match=${encodeURIComponent(match)}`;
  while (path) {
    const found = await ask('GET', path);
    yield* found.entries;
    path = found.next;
  }
}

const report = `/entries/${address('report')}`;
const schedule = { __type__: 'crontab', minute: '30', hour: '6' };
await ask('PUT', report, { task: 'proj.tasks.report', schedule }, { 'if-none-match': '*' });
await change('report', (entry) => ({ args: [...entry.args, 'weekly'], timezone: 'Europe/Berlin' }));
await ask('PUT', `${report}/pause`, { note: 'release', until: '2h' });
await ask('DELETE', `${report}/pause`);
const key = randomUUID();
const { task_id } = await ask('PUT', `${report}/trigger`, {}, { 'idempotency-key': key });
console.log(`sent ${task_id}`);
for await (const entry of entries('rep*')) console.log(entry.name, entry.next_due_at);
await ask('DELETE', report);
