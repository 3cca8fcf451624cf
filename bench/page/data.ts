import { createHash } from 'node:crypto';
import { crc32, deflateSync } from 'node:zlib';
import type { AnabranchClient, EntryInit } from '../../src/client/index.ts';
import { appendBatch } from '../../src/client/index.ts';
import { Random } from '../../src/demo/cartpole.ts';

/** Seeded data for the page: the same at each run. Written by AppendBatch and LogMetrics, a MiB a call at most. */

/** Entries and steps of one call. */
const [ENTRIES, CALL_STEPS] = [250, 3_000];
const POINTS = 10_000;
/** Keys of the metrics that plots show. */
export const METRIC_KEYS = 'loss kl entropy reward_mean reward_std lr grad_norm seconds'.split(' ');

export interface TreeSize {
  readonly branches: number;
  readonly rootSteps: number;
  /** Own steps of each branch. */
  readonly steps: number;
}

/** Creates a root, and branches at random steps of it. Returns the id of the root. */
export async function createTree(
  client: AnabranchClient,
  seed: string,
  { branches, rootSteps, steps }: TreeSize,
): Promise<string> {
  const random = Random.seeded(branches);
  const root = seededId(seed, -1);
  const trajectory = { trajectoryId: root, requestId: root, name: seed };
  await write(client, [{ trajectoryId: root, create: { trajectory }, steps: smallSteps(0, rootSteps, random) }]);
  const most = Math.max(1, Math.min(ENTRIES, Math.floor(CALL_STEPS / steps)));
  for (let first = 0; first < branches; first += most) {
    const entries = Array.from({ length: Math.min(most, branches - first) }, (_, at): EntryInit => {
      const number = first + at;
      const id = seededId(seed, number);
      const point = Math.floor(random.uniform(0, rootSteps));
      const branch = { trajectoryId: root, stepNumber: BigInt(point), branchId: id, requestId: id };
      return {
        trajectoryId: id,
        create: { branch: { ...branch, name: `branch ${number}` } },
        steps: smallSteps(point + 1, steps, random),
      };
    });
    await write(client, entries);
  }
  return root;
}

/** Returns steps with an action, four observed numbers and a reward. */
function smallSteps(from: number, count: number, random: Random) {
  return Array.from({ length: count }, (_, at) => smallStep(from + at, random));
}

function smallStep(number: number, random: Random) {
  const observation = Array.from({ length: 4 }, () => random.uniform(-1, 1));
  return {
    stepNumber: BigInt(number),
    actions: [{ type: 'discrete', content: { json: `${number % 2}` } }],
    observations: [{ type: 'box', content: { json: JSON.stringify(observation) } }],
    reward: random.uniform(0, 1),
  };
}

async function write(client: AnabranchClient, entries: readonly EntryInit[]): Promise<void> {
  for (const result of await appendBatch(client, entries)) if (!result.stored) throw result.error;
}

function seededId(seed: string, number: number): string {
  const hex = createHash('sha256').update(`${seed} ${number}`).digest('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}

/** Creates a run whose 8 metric series have this many points each. Returns its id. */
export async function createMeasuredRun(client: AnabranchClient, pointsEach: number): Promise<string> {
  const { run } = await client.runs.createRun({ name: 'measured', mainTrajectory: {} });
  const each = POINTS / METRIC_KEYS.length;
  for (let from = 0; from < pointsEach; from += each)
    await logPoints(client, run!.id, from, Math.min(each, pointsEach - from));
  return run!.id;
}

/** Logs points of all series. */
export async function logPoints(client: AnabranchClient, runId: string, from: number, count: number): Promise<void> {
  const points = METRIC_KEYS.flatMap((key, series) =>
    Array.from({ length: count }, (_, at) => {
      const step = from + at;
      return {
        key,
        metricStep: BigInt(step),
        value: Math.sin(step / (50 + series)) + ((step * 7919) % 104_729) / 104_729,
      };
    }),
  );
  await client.runs.logMetrics({ runId, points });
}

/** Side of the images of steps, in pixels. A noise image is as large as a screenshot of a desktop: about 200 KB. */
const SIDE = 256;
/** Entries of the JSON state of a step. */
const STATE_ENTRIES = 400;

/** Creates a trajectory whose steps have an image of 200 KB and a JSON state of 20 KB each. Returns its id. */
export async function createScreenshots(client: AnabranchClient, steps: number): Promise<string> {
  const random = Random.seeded(7);
  const { trajectory } = await client.trajectories.createTrajectory({ name: 'screenshots' });
  const state = Array.from({ length: STATE_ENTRIES }, (_, at) => ({
    id: at,
    name: `entity ${at}`,
    value: 0,
    at: [0, 0],
  }));
  for (let step = 0; step < steps; step += 1) {
    for (let change = 0; change < 10; change += 1) {
      const entry = state[Math.floor(random.uniform(0, STATE_ENTRIES))]!;
      entry.value = random.uniform(0, 1);
    }
    await client.trajectories.appendStep({
      trajectoryId: trajectory!.id,
      step: {
        stepNumber: BigInt(step),
        observations: [{ type: 'image', content: { data: noisePng(random), mediaType: 'image/png' } }],
        states: [{ data: Buffer.from(JSON.stringify(state)), mediaType: 'application/json' }],
      },
    });
  }
  return trajectory!.id;
}

function noisePng(random: Random): Uint8Array<ArrayBuffer> {
  const row = 1 + SIDE * 3;
  const pixels = Buffer.alloc(row * SIDE);
  for (let at = 0; at < pixels.length; at += 1) pixels[at] = at % row === 0 ? 0 : random.uint32() & 255;
  const head = Buffer.alloc(13);
  head.writeUInt32BE(SIDE, 0);
  head.writeUInt32BE(SIDE, 4);
  head.set([8, 2, 0, 0, 0], 8);
  const parts = [chunk('IHDR', head), chunk('IDAT', deflateSync(pixels)), chunk('IEND', Buffer.alloc(0))];
  return Uint8Array.from(Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), ...parts]));
}

function chunk(name: string, data: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(name, 'latin1'), data]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  sum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, sum]);
}
