import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { ConnectError } from '@connectrpc/connect';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, reasonOf } from '../../../src/client/index.ts';
import type { Random } from '../random.ts';
import { helperLife } from './helper-writer.ts';
import { History } from './history.ts';
import { rawLife } from './raw-writer.ts';
import { Follower, readOnce } from './readers.ts';

export interface LoadOptions {
  /** Addresses of the servers: any of them may be used for any call. */
  readonly addresses: readonly string[];
  readonly random: Random;
  /** Branches of one trunk that are written concurrently. Default 8. */
  readonly branches?: number;
  /** Writers without a helper, and client helpers, on each branch; they take over from each other. Default 1 and 1. */
  readonly rawWriters?: number;
  readonly helperWriters?: number;
  readonly readers?: number;
  /** Of each branch. */
  readonly followers?: number;
  /** Steps that a writer appends before it ends: few steps mean many take-overs. */
  readonly stepsALife?: readonly [least: number, most: number];
  /** A writer treats its connection as dead after this time. Default 10 s. */
  readonly silenceMs?: number;
}

const TRUNK_STEPS = 24;
const WINDOW = 48;
const COURTESY_MS = 15_000;

/** Expected reasons for the end of a stream during faults. Everything else is unexpected. */
const EXPECTED = new Set([
  'WRITER_FENCED',
  'DATABASE_UNAVAILABLE',
  'SERVER_DRAINING',
  'STORAGE_FULL',
  'SLOW_READER',
  'CANCELLED',
  'DEADLINE_EXCEEDED',
]);

/**
 * Writers on branches of one trunk that take over from each other, readers, followers, and a process that branches and
 * seals; everything is recorded.
 */
export class Load {
  readonly history = new History();
  readonly trunk = randomUUID();
  readonly branches: readonly string[];
  readonly #options: Required<LoadOptions>;
  readonly #clients: AnabranchClient[];
  readonly #stop = new AbortController();
  readonly #work: Promise<void>[] = [];
  readonly #followers: { readonly follower: Follower; readonly trajectory: string; readonly run: Promise<void> }[] = [];

  static async start(options: LoadOptions): Promise<Load> {
    const load = new Load(options);
    await load.#plant();
    load.#begin();
    return load;
  }

  private constructor(options: LoadOptions) {
    this.#options = {
      branches: 8,
      rawWriters: 1,
      helperWriters: 1,
      readers: 2,
      followers: 1,
      stepsALife: [200, 1200],
      silenceMs: 10_000,
      ...options,
    };
    this.branches = Array.from({ length: this.#options.branches }, () => randomUUID());
    this.#clients = options.addresses.map((address) => connectClient({ address }));
  }

  /** Resolves when this many more steps were acked, and at least one is unacked. */
  async moreAcks(count: number, withinMs = 30_000): Promise<void> {
    const wanted = this.history.acked + count;
    const deadline = performance.now() + withinMs;
    while (this.history.acked < wanted || this.history.inFlight === 0) {
      if (performance.now() > deadline)
        throw new Error(`only ${this.history.acked} of ${wanted} steps were acked within ${withinMs} ms`);
      await delay(2);
    }
  }

  /** Resolves when this many more streams were granted, or after `withinMs`, and returns which. */
  async moreGrants(count: number, withinMs: number): Promise<boolean> {
    const wanted = this.history.grants.length + count;
    const deadline = performance.now() + withinMs;
    while (this.history.grants.length < wanted) {
      if (performance.now() > deadline) return false;
      await delay(2);
    }
    return true;
  }

  /**
   * Lets the writers end in order; then followers get the rest. Requires a service that works again. Rejects if any of
   * them hangs.
   */
  async finish(): Promise<void> {
    this.#stop.abort();
    await Promise.all(this.#work);
    const [client] = this.#clients as [AnabranchClient];
    for (const { follower, trajectory } of this.#followers) {
      const { trajectory: now } = await client.trajectories.getTrajectory({ trajectoryId: trajectory });
      await follower
        .reach(now?.nextStepNumber ?? 0n, 15_000)
        .catch((error: Error) => this.history.surprises.push(error.message));
      follower.leave();
    }
    await Promise.all(this.#followers.map(({ run }) => run));
  }

  /** For calls of the test itself. */
  get client(): AnabranchClient {
    return this.#clients[0]!;
  }

  close(): void {
    this.#stop.abort();
    for (const { follower } of this.#followers) follower.leave();
    for (const client of this.#clients) client.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** The trunk with its steps, and the branches at different steps of it. */
  async #plant(): Promise<void> {
    const { random } = this.#options;
    await this.client.trajectories.createTrajectory({ trajectoryId: this.trunk });
    await rawLife({ ...this.#life(this.trunk), client: this.client, steps: TRUNK_STEPS });
    for (const branch of this.branches)
      await this.#branch(this.trunk, BigInt(random.between(0, TRUNK_STEPS - 1)), branch);
  }

  #begin(): void {
    const { rawWriters, helperWriters, readers, followers } = this.#options;
    for (const trajectory of this.branches) {
      for (let i = 0; i < rawWriters; i += 1) this.#again(100, 1_200, () => this.#rawLife(trajectory));
      for (let i = 0; i < helperWriters; i += 1) this.#again(50, 600, () => helperLife(this.#life(trajectory)));
      for (let i = 0; i < followers; i += 1) this.#addFollower(trajectory, `follower ${i}`);
    }
    for (let i = 0; i < readers; i += 1) this.#again(20, 80, () => this.#read(`reader ${i}`));
    this.#again(200, 600, () => this.#branchAndSeal());
  }

  #life(trajectoryId: string) {
    const { random, silenceMs, stepsALife } = this.#options;
    return {
      history: this.history,
      client: random.pick(this.#clients),
      trajectoryId,
      random,
      steps: random.between(...stepsALife),
      window: WINDOW,
      silenceMs,
      stop: this.#stop.signal,
    };
  }

  /**
   * After a cut the helper of the trajectory, if it is alive, gets time first: otherwise it would be fenced each time
   * before it could replay.
   */
  async #rawLife(trajectory: string): Promise<void> {
    const grants = () => this.history.grantCount(trajectory);
    try {
      await rawLife(this.#life(trajectory));
    } catch (error) {
      const [before, deadline] = [grants(), performance.now() + COURTESY_MS];
      const courtesy = this.#options.helperWriters > 0 && reasonOf(error) !== 'WRITER_FENCED';
      while (courtesy && grants() === before && performance.now() < deadline && !this.#stop.signal.aborted)
        await delay(20);
      throw error;
    }
  }

  /** Repeats an action with pauses, until the end. */
  #again(least: number, most: number, what: () => Promise<void>): void {
    const { signal } = this.#stop;
    const run = async () => {
      // The order is random too.
      await this.#pause(0, most);
      while (!signal.aborted) {
        await what().catch((error: unknown) => this.#judge(error));
        await this.#pause(least, most);
      }
    };
    this.#work.push(run());
  }

  async #pause(least: number, most: number): Promise<void> {
    const { signal } = this.#stop;
    await delay(this.#options.random.between(least, most), undefined, { signal }).catch(() => undefined);
  }

  #judge(error: unknown): void {
    const reason = reasonOf(error);
    const explained = reason === undefined ? error instanceof ConnectError : EXPECTED.has(reason);
    if (!explained) this.history.surprises.push(String(error));
  }

  async #read(reader: string): Promise<void> {
    const { random } = this.#options;
    const trajectory = random.pick(this.branches);
    const back = this.history.ackedEnd(trajectory) - BigInt(random.between(0, 100));
    await readOnce(this.history, random.pick(this.#clients), { reader, trajectory, from: back > 0n ? back : 0n });
  }

  #addFollower(trajectory: string, name: string): void {
    const { random } = this.#options;
    const from = BigInt(random.between(0, 1));
    const follower = new Follower(this.history, name, trajectory, from);
    const run = follower.run(
      () => random.pick(this.#clients),
      () => delay(random.between(20, 100)),
    );
    this.#followers.push({ follower, trajectory, run });
  }

  /** Branches at a recently acked step, or an earlier one, and seals the branch. */
  async #branchAndSeal(): Promise<void> {
    const { random } = this.#options;
    const parent = random.pick(this.branches);
    const newest = this.history.ackedEnd(parent) - 1n;
    if (newest < 0n) return;
    const branch = randomUUID();
    await this.#branch(parent, random.between(1, 4) === 1 ? newest : this.#early(newest), branch);
    const sealing = { trajectory: branch, outcome: 'unknown' as 'unknown' | 'acked' };
    this.history.sealings.push(sealing);
    await random
      .pick(this.#clients)
      .trajectories.sealTrajectory({ trajectoryId: branch, seal: { status: Status.COMPLETED } }, QUICK);
    sealing.outcome = 'acked';
  }

  /** A step of the branch itself: the branch starts within the trunk. */
  #early(newest: bigint): bigint {
    if (newest <= TRUNK_STEPS) return newest;
    return BigInt(this.#options.random.between(TRUNK_STEPS, Math.min(Number(newest), 300)));
  }

  async #branch(source: string, stepNumber: bigint, branchId: string): Promise<void> {
    const branching = {
      branch: branchId,
      parent: source,
      point: stepNumber,
      outcome: 'unknown' as 'unknown' | 'acked',
    };
    this.history.branchings.push(branching);
    const client = this.#options.random.pick(this.#clients);
    await client.trajectories.branchTrajectory({ trajectoryId: source, stepNumber, branchId }, QUICK);
    branching.outcome = 'acked';
  }
}

const QUICK = { timeoutMs: 10_000 };
