import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { run } from '../../test/languages/run.ts';
import { startTcpProxy } from '../../test/support/tcp-proxy.ts';
import { serving } from './served.ts';
import { USES } from './uses.ts';

const PYTHON = path.resolve(import.meta.dirname, '../../clients/python');
const OUTAGE_MS = 10_000;

const served = serving('sqlite');

it('a server that cannot be reached for ten seconds delays all integrations of both languages, which lose nothing', async () => {
  const venv = await run('./venv', ['python-sdk', 'requirements-test.txt'], { cwd: PYTHON, minutes: 10 });
  const { hostname: host, port } = new URL(served.url);
  await using proxy = await startTcpProxy({ host, port: Number(port) });
  const env = { ...process.env, ANABRANCH_ADDRESS: `127.0.0.1:${proxy.port}`, PYTHONPATH: path.join(PYTHON, 'src') };
  const program = path.join(import.meta.dirname, 'uses.py');
  const child = spawn(path.join(venv.trim(), 'bin/python'), [program], { env, stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const client = connectClient({ address: proxy.url });
  const uses = Object.values(USES).map((use) => use(client));
  await Promise.all(uses.map(({ write }) => write(1)));
  expect((await lines.next()).value).toBe('written');

  // The port of the proxy accepts, and ends each connection at once.
  proxy.retarget({ host, port: 1 });
  proxy.cut();
  let written = 0;
  const writes = Promise.all(uses.map(async ({ write }) => write(2).then(() => (written += 1))));
  child.stdin.write('\n');
  const again = lines.next().then(({ value }) => {
    written += 1;
    return value;
  });
  await sleep(OUTAGE_MS);
  expect(written).toBe(0);
  proxy.retarget({ host, port: Number(port) });

  await writes;
  expect(await again).toBe('written again');
  expect((await lines.next()).value).toBe('[2, 2, 2, 2]');
  expect(await Promise.all(uses.map(({ read }) => read()))).toEqual([2, 2, 2]);
  if (child.exitCode === null) await once(child, 'exit');
  expect(child.exitCode).toBe(0);
  client.close();
});
