import { constants } from 'node:http2';
import { setTimeout as wait } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  type AnabranchClient,
  connectClient,
  openWriter,
  readSteps,
  type TrajectoryWriter,
} from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { requireIntact } from '../support/intact.ts';
import { reportFigures } from './figures.ts';
import { startReaders } from './readers/readers.ts';
import { type WatchedServer, watchServer } from './watched/watched-server.ts';

const READERS = dose({ polite: 60, ranges: 30, wide: 10 }, { polite: 120, ranges: 60, wide: 20 });
const FOLLOWERS = READERS.polite + READERS.wide;
const COUNT = FOLLOWERS + READERS.ranges;
/** The memory that a reader may cost by R3: 1 MiB and one message, which has up to 1 MiB. */
const BOUND_MIB = COUNT * 2;
/** Longer than all readers need to begin, and the appends beside them. */
const SLOW_READER_MS = dose(4_000, 8_000);
const STEPS = dose(150, 300);
const STEP_BYTES = 100_000;
const LOCKSTEP = dose(100, 200);
/** Connections to Postgres that the server may have opened meanwhile, and keeps. */
const POOL = 10;

describe.each(ENGINES)('readers that never read, on %s', (engine) => {
  let server: WatchedServer;
  let trajectoryId: string;

  beforeAll(async () => {
    server = await watchServer({ engine, settings: { slowReaderMs: SLOW_READER_MS } });
    const client = connectClient({ address: server.url });
    trajectoryId = await makeLong(client);
    client.close();
  });
  afterAll(() => server[Symbol.asyncDispose]());

  it(`R3: ${COUNT} of them cost bounded memory, slow no writer, and are cut off; a slow one continues where it was`, async () => {
    const client = connectClient({ address: server.url });
    const writer = await openWriter(client, { trajectoryId });
    const alone = await lockstep(writer);
    const before = await server.memory();
    await server.forgetPeak();

    const slow = readSlowly(client, trajectoryId, SLOW_READER_MS * 1.25);
    const readers = await startReaders(server, trajectoryId, READERS);
    await until(server, ({ handlers }) => handlers >= COUNT);
    const beside = await lockstep(writer);
    const codes = await readers.cut();
    await until(server, ({ followers: left, handlers }) => left <= 1 && handlers <= 2);
    const { peak } = await server.memory();
    await writer.close();
    expect(await slow).toEqual(Array.from({ length: STEPS + 2 * LOCKSTEP }, (_, i) => BigInt(i)));
    readers.vanish();
    await requireIntact(client);
    client.close();
    await server.empty(5_000);

    reportFigures(`slow readers, ${engine}`, {
      followers: FOLLOWERS,
      'readers of a range': READERS.ranges,
      'memory before (MiB)': Math.round(before.now),
      'memory at most (MiB)': Math.round(peak),
      'append alone, median (ms)': alone.median,
      'append beside them, median (ms)': beside.median,
      'append beside them, slowest (ms)': beside.slowest,
      'cut off': codes.length + READERS.wide,
    });
    expect(new Set(codes)).toEqual(new Set([constants.NGHTTP2_ENHANCE_YOUR_CALM]));
    expect(peak - before.now).toBeLessThan(BOUND_MIB);
    expect(beside.median).toBeLessThan(3 * alone.median + 10);
    expect(server.output()).not.toContain('internal error');
  });

  it(`R3: ${COUNT} of them that disconnect leave no handler, connection or subscription behind`, async () => {
    await server.empty(5_000);
    const files = await server.files();
    const readers = await startReaders(server, trajectoryId, READERS);
    await until(server, ({ handlers, followers: count }) => handlers >= COUNT && count >= FOLLOWERS);
    readers.vanish();
    await server.empty(5_000);
    reportFigures(`vanished readers, ${engine}`, {
      followers: FOLLOWERS,
      'readers of a range': READERS.ranges,
      'left after 5 s': 0,
    });
    expect(await server.files()).toBeLessThanOrEqual(files + POOL);
    const verifying = connectClient({ address: server.url });
    await requireIntact(verifying).finally(() => verifying.close());
  });
});

/** Returns the id of a trajectory that is much longer than what a reader may have outstanding. */
async function makeLong(client: AnabranchClient): Promise<string> {
  const { trajectory } = await client.trajectories.createTrajectory({ name: 'long' });
  const writer = await openWriter(client, { trajectoryId: trajectory!.id });
  const infoJson = JSON.stringify('x'.repeat(STEP_BYTES));
  for (let i = 0; i < STEPS; i += 1) {
    void writer.append({ infoJson });
    await writer.ready();
  }
  await writer.close();
  return writer.trajectoryId;
}

async function lockstep(writer: TrajectoryWriter): Promise<{ median: number; slowest: number }> {
  const times: number[] = [];
  for (let i = 0; i < LOCKSTEP; i += 1) {
    const begun = performance.now();
    await writer.append({ reward: i });
    times.push(performance.now() - begun);
  }
  times.sort((a, b) => a - b);
  const rounded = (ms: number | undefined) => Math.round((ms ?? 0) * 10) / 10;
  return { median: rounded(times[LOCKSTEP / 2]), slowest: rounded(times.at(-1)) };
}

/**
 * A reader that pauses after its first step, for longer than is allowed, and then reads on to the end. Returns the
 * numbers it got.
 */
async function readSlowly(client: AnabranchClient, trajectoryId: string, restMs: number): Promise<bigint[]> {
  const got: bigint[] = [];
  const endStepNumber = BigInt(STEPS + 2 * LOCKSTEP);
  for await (const { step } of readSteps(client, { trajectoryId, follow: true, endStepNumber })) {
    got.push(step.stepNumber);
    if (got.length === 1) await wait(restMs);
  }
  return got;
}

async function until(
  server: WatchedServer,
  holds: (counts: { handlers: number; followers: number }) => boolean,
): Promise<void> {
  await expect.poll(async () => holds((await server.glance()).counts), { timeout: 60_000, interval: 50 }).toBe(true);
}
