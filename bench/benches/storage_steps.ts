import { connectClient } from '../../src/client/index.ts';
import { type Bench, compare, figure, median, type Result, type Run } from '../bench.ts';
import { countSegments, databaseBytes } from '../database_size.ts';
import { FrameTemplate, type Payload } from '../payload.ts';
import { pause } from '../programs/program.ts';
import { longTrajectories } from './read.ts';

const STREAMS = 4;
const STEPS = 1_000_000;
/** Rows of trajectories that do not grow are merged after this time. The service waits longer. */
const MERGE_IDLE_MS = 1000;
/** Merging and the return of free space have caught up if neither rows nor size change for this time. */
const SETTLED_SECONDS = 7;

/** Sizes of small steps, once they are merged. */
export const storageSteps: readonly Bench[] = [
  {
    names: ['storage-cartpole', 'storage-cartpole-bytes', 'storage-cartpole-bytes-vacuumed'],
    about:
      'steps/s of 1,000,000 CartPole steps with states, 4 streams; against the same without states. Stored bytes by sent bytes',
    engines: ['sqlite', 'postgres'],
    async run(run): Promise<Result[]> {
      const rounds = await measure(run, 'step-with-state', 'step');
      const rates = (of: 'stored' | 'other') => rounds.map((round) => round[of].stepsPerSecond);
      const about = { bench: 'storage-cartpole', aim: '>= 0.67', unit: 'steps/s' };
      return [
        compare(run, about, rates('stored'), rates('other')),
        ...bytesOf(run, 'storage-cartpole', '<= 0.6', rounds),
      ];
    },
  },
  {
    names: ['storage-json', 'storage-json-bytes', 'storage-json-bytes-vacuumed'],
    about: 'steps/s of 1,000,000 steps of 430 bytes of JSON, 4 streams. Stored bytes by sent bytes',
    engines: ['sqlite', 'postgres'],
    async run(run): Promise<Result[]> {
      const rounds = await measure(run, 'json');
      const rates = rounds.map(({ stored }) => stored.stepsPerSecond);
      return [
        figure(run, { bench: 'storage-json', unit: 'steps/s' }, rates),
        ...bytesOf(run, 'storage-json', '<= 0.4', rounds),
      ];
    },
  },
];

interface Stored {
  readonly stepsPerSecond: number;
  readonly sentBytes: number;
  readonly storedBytes: number;
  /** On Postgres as `storedBytes`. */
  readonly vacuumedBytes: number;
}

interface Round {
  readonly stored: Stored;
  readonly other: Stored;
}

/** Stores steps, and steps of the other payload, by turns. */
async function measure(run: Run, payload: Payload, other = payload): Promise<Round[]> {
  const rounds: Round[] = [];
  for (let round = 0; round < run.rounds; round += 1) {
    const stored = await store(run, payload);
    rounds.push({ stored, other: other === payload ? stored : await store(run, other) });
  }
  return rounds;
}

async function store(run: Run, payload: Payload): Promise<Stored> {
  const database = await run.resources.emptySchema(run.engine);
  const before = await databaseBytes(database);
  const server = await run.resources.server('real', run.engine, database, { mergeIdleMs: MERGE_IDLE_MS });
  const { stepsPerSecond } = await longTrajectories(run, server, { count: STREAMS, steps: STEPS / STREAMS, payload });
  run.showProgress('waiting until it is merged');
  for (let before = '', now = '0'; before !== now; ) {
    before = now;
    await pause(SETTLED_SECONDS);
    now = `${await countSegments(database)} ${run.engine === 'sqlite' ? await databaseBytes(database) : ''}`;
  }
  await server.stop();
  const storedBytes = (await databaseBytes(database)) - before;
  const vacuumedBytes = run.engine === 'sqlite' ? (await vacuumedBytesOf(run, database)) - before : storedBytes;
  return { stepsPerSecond, sentBytes: STEPS * new FrameTemplate(payload, 1).size, storedBytes, vacuumedBytes };
}

/** Returns the size of a file after the space of deleted rows was returned to the file system. */
async function vacuumedBytesOf(run: Run, database: string): Promise<number> {
  const server = await run.resources.server('real', run.engine, database);
  const client = connectClient({ address: `http://${server.address}` });
  for await (const _ of client.admin.vacuumDatabase({}));
  client.close();
  await server.stop();
  return databaseBytes(database);
}

/** Stored bytes as they are, and without any free pages. */
function bytesOf(run: Run, name: string, aim: string, rounds: readonly Round[]): Result[] {
  const stored = rounds.map((round) => round.stored);
  const result = (bench: string, bytes: readonly number[]): Result => ({
    ...figure(
      run,
      { bench, unit: 'bytes/step' },
      bytes.map((each) => each / STEPS),
    ),
    ratio: median(bytes.map((each, i) => each / stored[i]!.sentBytes)),
    aim,
  });
  return [
    result(
      `${name}-bytes`,
      stored.map(({ storedBytes }) => storedBytes),
    ),
    result(
      `${name}-bytes-vacuumed`,
      stored.map(({ vacuumedBytes }) => vacuumedBytes),
    ),
  ];
}
