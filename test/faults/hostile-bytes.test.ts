import { mkdtempSync, readFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { dose } from '../support/dose.ts';
import { requireIntact } from '../support/intact.ts';
import { openTlsTunnel } from '../support/tls-tunnel.ts';
import { reportFigures } from './figures.ts';
import { attacks } from './hostile/attacks.ts';
import { startNeighbour } from './hostile/neighbour.ts';
import { seededRandom } from './random.ts';
import { type WatchedServer, watchServer } from './watched/watched-server.ts';

/** MiB for all objects of the server: few, so that a leak ends it. */
const HEAP = 768;
/** Files that the server may open for itself meanwhile: its thread for large groups has a connection of its own. */
const OWN_FILES = 12;

describe.each(['without TLS', 'without a credential', ...dose([], ['over TLS'])])('hostile bytes %s', (kind) => {
  const random = seededRandom();
  let server: WatchedServer;
  let door: { readonly port: number; readonly url: string };
  let close = async () => {};
  let trajectoryId: string;
  /** Whether callers need credentials. The attackers have none. */
  const guarded = kind === 'without a credential';
  let token: string | undefined;
  const options = () => ({ address: door.url, token });

  beforeAll(async () => {
    const authority = createAuthority();
    const adminKeyFile = path.join(mkdtempSync(path.join(os.tmpdir(), 'anabranch-bytes-')), 'key');
    const flags = {
      ...(kind === 'over TLS' && writeIssued(authority.issue())),
      ...(guarded && { auth: 'required', adminKeyFile }),
    };
    server = await watchServer({ engine: 'sqlite', heap: HEAP, flags });
    door = server;
    if (guarded) token = readFileSync(adminKeyFile, 'utf8').trim();
    if (kind === 'over TLS') {
      const tunnel = await openTlsTunnel(server.port, authority.cert);
      door = tunnel;
      close = tunnel.close;
    }
    const client = connectClient(options());
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'target' });
    trajectoryId = trajectory!.id;
    client.close();
    await server.empty(5_000);
  });
  afterAll(async () => {
    await close();
    await server[Symbol.asyncDispose]();
  });

  const numbers = dose(
    { mutated: 8_000, broken: 280, floods: 100_000, bombs: 20, streams: 48 },
    { mutated: 40_000, broken: 2_000, floods: 100_000, bombs: 50, streams: 80 },
  );

  it.each(attacks(numbers))(
    'T11 to T15, MS3: $name: the server stays up, serves others meanwhile, and keeps nothing',
    async ({ name, mayCost, mayHoldUpMs = 3_000, run }) => {
      const files = await server.files();
      const linesBefore = server.output().split('\n').length - 1;
      const before = await server.memory();
      const { cpuMs } = await server.glance();
      await server.forgetPeak();
      const neighbour = await startNeighbour(options());
      const attack = run({ port: door.port, trajectoryId, guarded, random });
      await attack.catch(() => undefined); // reported below, when the neighbour has ended
      const { calls, slowestMs } = await neighbour.leave();
      const inputs = await attack;
      await server.empty(10_000);
      const after = await server.memory();
      const glance = await server.glance();
      reportFigures(`hostile bytes ${kind}, ${name}`, {
        seed: random.seed,
        inputs,
        'memory before (MiB)': Math.round(before.now),
        'memory at most (MiB)': Math.round(after.peak),
        'server CPU (s)': Math.round((glance.cpuMs - cpuMs) / 100) / 10,
        "a neighbour's calls": calls,
        'the slowest of them (ms)': Math.round(slowestMs),
      });
      expect(inputs).toBeGreaterThan(0);
      expect(server.alive).toBe(true);
      expect(calls).toBeGreaterThan(0);
      expect(slowestMs).toBeLessThan(mayHoldUpMs);
      expect(after.peak - before.now).toBeLessThan(mayCost);
      expect(await server.files()).toBeLessThanOrEqual(files + OWN_FILES);
      const faults = server.output().split('\n').slice(linesBefore);
      expect(faults.filter((line) => /internal error|unhandled|uncaught/iu.test(line)).slice(0, 3)).toEqual([]);
      const verifying = connectClient(options());
      await requireIntact(verifying).finally(() => verifying.close());
      await server.empty(5_000);
    },
  );
});
