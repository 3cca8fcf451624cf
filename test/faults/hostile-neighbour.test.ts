import { mkdtemp, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { type AnabranchClient, connectClient, openWriter } from '../../src/client/index.ts';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { dose } from '../support/dose.ts';
import { requireIntact } from '../support/intact.ts';
import { reportFigures } from './figures.ts';
import { startNeighbourProcess } from './hostile/neighbour_process.ts';
import { watchServer } from './watched/watched-server.ts';

const APPENDS = dose(500, 5_000);
/** Of one processor, for the process of the neighbour. */
const CPU_SHARE = 0.5;
/** MiB for all objects of the server: few, so that a leak ends it. */
const HEAP = 768;
/** Files that the server may open for itself meanwhile. */
const OWN_FILES = 12;

interface Work {
  readonly p50: number;
  readonly p99: number;
  readonly slowest: number;
}

/** Appends on a new connection, waits for each ack, and reads its trajectory from time to time. No call may fail. */
async function work(client: AnabranchClient): Promise<Work> {
  const { trajectory } = await client.trajectories.createTrajectory({});
  const trajectoryId = trajectory!.id;
  const events: string[] = [];
  const writer = await openWriter(client, { trajectoryId, onEvent: ({ type }) => events.push(type) });
  const times: number[] = [];
  for (let i = 0; i < APPENDS; i += 1) {
    const begun = performance.now();
    await writer.append({ reward: i });
    times.push(performance.now() - begun);
    if (i % 50 === 0) await client.trajectories.getTrajectory({ trajectoryId });
  }
  await writer.close();
  expect(events.filter((type) => type === 'cut')).toEqual([]);
  times.sort((a, b) => a - b);
  const at = (part: number) => Math.round(times[Math.floor((times.length - 1) * part)]! * 10) / 10;
  return { p50: at(0.5), p99: at(0.99), slowest: at(1) };
}

it('MS5, MS6: a hostile neighbour with a key of its own fails no call of another one, and leaves nothing behind', async () => {
  const authority = createAuthority();
  const ca = authority.cert;
  const folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-neighbour-'));
  const adminKeyFile = path.join(folder, 'key');
  const flags = { ...writeIssued(authority.issue()), auth: 'required', adminKeyFile };
  await using server = await watchServer({ engine: 'sqlite', heap: HEAP, flags });
  const connected = (token: string) => connectClient({ address: server.url, ca, token });
  const adminKey = (await readFile(adminKeyFile, 'utf8')).trim();
  await rm(folder, { recursive: true });
  const keyOf = async (name: string) => {
    const admin = connected(adminKey);
    const { secret } = await admin.admin.createKey({ name, role: Role.WRITE, namespaces: [name] });
    admin.close();
    return secret;
  };
  const own = await keyOf('own');

  const beside = async (kind: 'harmless' | 'hostile') => {
    const target = { url: server.url, port: server.port, ca, token: await keyOf(kind) };
    const neighbour = await startNeighbourProcess({ kind, target, cpuShare: CPU_SHARE });
    const client = connected(own);
    const worked = await work(client);
    const rates = await neighbour.kill();
    client.close();
    await server.empty(10_000);
    return { worked, rates };
  };
  const harmless = await beside('harmless');
  const files = await server.files();
  const before = await server.memory();
  await server.forgetPeak();
  const hostile = await beside('hostile');
  const after = await server.memory();
  reportFigures('hostile neighbour', {
    'append beside a harmless one, p50, p99, slowest (ms)': Object.values(harmless.worked).join(' '),
    'and beside a hostile one': Object.values(hostile.worked).join(' '),
    'memory before (MiB)': Math.round(before.now),
    'memory at most (MiB)': Math.round(after.peak),
  });
  reportFigures('the harmless one, a second', harmless.rates);
  reportFigures('the hostile one, a second', hostile.rates);
  expect(server.alive).toBe(true);
  expect(after.peak - before.now).toBeLessThan(HEAP);
  expect(await server.files()).toBeLessThanOrEqual(files + OWN_FILES);
  expect(server.output()).not.toMatch(/internal error|unhandled|uncaught/iu);
  const admin = connected(adminKey);
  await requireIntact(admin).finally(() => admin.close());
});
