/** Fills the disk under a server with steps, checks the errors, makes room, and checks again. */
import { createHash, randomBytes } from 'node:crypto';
import { Code, ConnectError } from '@connectrpc/connect';
import { type AnabranchClient, connectClient, reasonOf, retryDelayMs } from '../../../src/client/index.ts';
import { createPostgresDatabase, type Engine } from '../../support/database.ts';
import { dose } from '../../support/dose.ts';
import { startPostgres } from '../../support/postgres.ts';
import { spawnServer } from '../../support/spawned-server.ts';
import { checkAcked, type Verdict } from '../acked/check.ts';
import { type Ledger, type LoadOptions, startLoad } from '../acked/load.ts';
import type { SeenStep } from '../history/history.ts';
import { contentOf } from '../history/steps.ts';
import { type Aftermath, aftermath } from '../postgres/killing.ts';
import { databaseOn, moveLog } from './databases.ts';
import { mountSmallDisk } from './small-disk.ts';

/** Writers beside the one that fills the disk. */
export type Writing = Pick<LoadOptions, 'writers' | 'window'>;

export interface Filled extends Verdict, Aftermath {
  /** Errors of writes while the disk was full. */
  readonly refusals: readonly string[];
  /** Refused steps that are stored all the same. */
  readonly refusedButStored: number;
  /** Reads that failed, or returned less than was acked, while the disk was full. */
  readonly readFaults: readonly string[];
  readonly readsWhileFull: number;
  readonly freeBytes: number;
  /** Waits until every writer that the full disk had stopped had another ack. */
  readonly resumedMs: number;
  readonly failures: readonly string[];
}

/**
 * MiB in total, and of these held in reserve. SQLite's log fills most of the rest, and needs as much room again to be
 * copied into the file.
 */
const DISKS = { sqlite: { size: 72, kept: 40 }, postgres: { size: 32, kept: 8 } };

export async function fillDisk(engine: Engine, writing: Writing): Promise<Filled> {
  await using disk = await mountSmallDisk(DISKS[engine].size, DISKS[engine].kept);
  await using database = await databaseOn(disk, engine);
  await using server = await spawnServer({ database: database.url });
  const client = connectClient({ address: server.url });
  const load = await startLoad({ address: server.url, ...writing });
  await load.everyone();
  const filler = await Filler.create(client);
  const refusals = await filler.fill();
  const freeBytes = await disk.free();
  const reads = await readBack(client, filler);
  const refusedButStored = Number((await filler.end()) - filler.ackedEnd);
  await disk.makeRoom();
  const begun = performance.now();
  await load.everyone();
  const resumedMs = performance.now() - begun;
  await filler.goOn();
  const verdict = await checkAcked(client, database, [...(await load.stop()), filler]);
  client.close();
  return {
    ...verdict,
    ...(await aftermath(server)),
    refusals,
    refusedButStored,
    readFaults: reads.faults,
    readsWhileFull: reads.steps,
    freeBytes,
    resumedMs,
    failures: load.failures.map(({ message }) => message),
  };
}

export type LogFilled = Pick<Filled, 'refusals' | 'resumedMs' | 'failures'> & Verdict & Aftermath;

/**
 * The same with the write-ahead log of Postgres on the disk: if it cannot be written Postgres ends itself, and is
 * started again.
 */
export async function fillDiskOfLog(writing: Writing): Promise<LogFilled> {
  await using disk = await mountSmallDisk(80, 32);
  await using postgres = await startPostgres();
  await moveLog(postgres, disk);
  await using database = await createPostgresDatabase(postgres.url);
  await using server = await spawnServer({ database: database.url });
  const client = connectClient({ address: server.url });
  const load = await startLoad({ address: server.url, ...writing });
  await load.everyone();
  const filler = await Filler.create(client);
  const refusals = await filler.fillUntilRefused(dose(8, 20));
  await disk.makeRoom();
  // It may be shutting down, recovering, or ended already.
  await postgres.killAll();
  await postgres.restart();
  const begun = performance.now();
  await load.everyone();
  const resumedMs = performance.now() - begun;
  const verdict = await checkAcked(client, database, await load.stop());
  client.close();
  const failures = load.failures.map(({ message }) => message);
  return { ...verdict, ...(await aftermath(server)), refusals, resumedMs, failures };
}

/** Ever smaller steps, until not even the smallest one fits any more. */
const SIZES = [256 * 1024, 16 * 1024, 1024, 64];
/** In a row, since a failed attempt may leave room that the next one finds. */
const REFUSALS_OF_EACH_SIZE = 8;

class Filler implements Ledger {
  readonly trajectoryId: string;
  readonly sent: SeenStep[] = [];
  readonly digests: string[] = [];
  ackedEnd = 0n;
  readonly #client: AnabranchClient;

  private constructor(client: AnabranchClient, trajectoryId: string) {
    this.#client = client;
    this.trajectoryId = trajectoryId;
  }

  static async create(client: AnabranchClient): Promise<Filler> {
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'filler' });
    return new Filler(client, trajectory!.id);
  }

  /** Returns one line for each refusal. */
  async fill(): Promise<string[]> {
    const refusals: string[] = [];
    for (const size of SIZES) {
      for (let inARow = 0; inARow < REFUSALS_OF_EACH_SIZE; ) {
        const refusal = await this.#append(size);
        inARow = refusal === undefined ? 0 : inARow + 1;
        if (refusal !== undefined) refusals.push(refusal);
      }
    }
    return refusals;
  }

  /** Continues with large steps until this many were refused in total; returns the refusals. */
  async fillUntilRefused(times: number): Promise<string[]> {
    const refusals: string[] = [];
    while (refusals.length < times) {
      const refusal = await this.#append(SIZES[0]!);
      if (refusal !== undefined) refusals.push(refusal);
    }
    return refusals;
  }

  /** After there is room again: the step that was refused last, and some more. */
  async goOn(): Promise<void> {
    for (let i = 0; i < 5; i += 1) {
      const refusal = await this.#append(1024);
      if (refusal !== undefined) throw new Error(`there is room, and an append is refused: ${refusal}`);
    }
  }

  async end(): Promise<bigint> {
    const { trajectory } = await this.#client.trajectories.getTrajectory({ trajectoryId: this.trajectoryId });
    return trajectory!.nextStepNumber;
  }

  /** Sends one step, once; returns the error if it was refused. */
  async #append(size: number): Promise<string | undefined> {
    const data = randomBytes(size);
    const digest = createHash('sha256').update(data).digest('hex');
    const stepNumber = this.ackedEnd;
    const infoJson = JSON.stringify({ size });
    try {
      const step = { stepNumber, infoJson, states: [{ name: 'env', data }] };
      await this.#client.trajectories.appendStep({ trajectoryId: this.trajectoryId, step });
    } catch (error) {
      return refusalIn(error);
    }
    this.sent.push({ number: stepNumber, content: contentOf(infoJson, digest) });
    this.digests.push(digest);
    this.ackedEnd += 1n;
    return undefined;
  }
}

function refusalIn(error: unknown): string {
  if (!(error instanceof ConnectError)) return String(error);
  const retry = retryDelayMs(error) === undefined ? 'without RetryInfo' : 'with RetryInfo';
  return `${Code[error.code]} ${reasonOf(error) ?? error.rawMessage} ${retry}`;
}

/** Reads everything the filler was acked, steps and states; returns what is missing. */
async function readBack(client: AnabranchClient, filler: Filler): Promise<{ steps: number; faults: string[] }> {
  const faults: string[] = [];
  let steps = 0;
  try {
    for await (const { steps: page } of client.trajectories.readSteps({ trajectoryId: filler.trajectoryId })) {
      for (const step of page) {
        const content = contentOf(step.infoJson, step.states[0]?.digest);
        if (content !== filler.sent[steps]?.content) faults.push(`step ${step.stepNumber} has other content`);
        steps += 1;
      }
    }
    if (BigInt(steps) !== filler.ackedEnd) faults.push(`${steps} steps of ${filler.ackedEnd} were read`);
    for (const { number: stepNumber } of [filler.sent[0]!, filler.sent.at(-1)!]) {
      const reference = { trajectoryId: filler.trajectoryId, stepNumber };
      for await (const _ of client.states.getState({ reference }));
    }
  } catch (error) {
    faults.push(refusalIn(error));
  }
  return { steps, faults };
}
