import { trajectoryLocked } from '../../domain/append.ts';
import { InTurn, type Waiting } from '../../queue/in_turn.ts';
import type { AppendBatch, AppendOutcome, AppendStore } from '../../store/contract/append.ts';
import { Contended, DatabaseSilent, isOutage } from '../../store/contract/store.ts';
import type { Trace } from '../../store/contract/trace.ts';
import type { Appended } from '../merging.ts';
import type { Logger } from '../settings.ts';

export type Committed = Extract<AppendOutcome, { kind: 'committed' }>;

/** The source of batches: an append stream or a unary call. Its batches for one trajectory are committed in order. */
export interface BatchSource {
  /** If true, none of its batches that wait is committed or reported: a stream has failed, or a caller has left. */
  readonly over: boolean;
  /**
   * How long its batches wait for a trajectory that another transaction holds, in milliseconds. They hold no connection
   * while they wait. Default: as long as the store waits.
   */
  readonly lockWaitMs?: number | undefined;
  /** Of its call. Undefined: the call is not traced. */
  readonly trace?: Trace | undefined;
  /** Called when a batch is durable, in the order of submission. Must not throw. */
  committed(batch: AppendBatch, bytes: number, outcome: Committed): void;
  /**
   * Called when a batch is rejected or could not be stored. After DATABASE_UNAVAILABLE the batch may be stored or not.
   * Sets `over` if later batches must not be committed. Must not throw.
   */
  failed(batch: AppendBatch, bytes: number, error: unknown): void;
}

interface CommitterOptions {
  /** Maximum number of groups in flight. Groups in flight share no trajectory. */
  readonly commitsAtOnce: number;
  /** Maximum number of transactions that wait for trajectories which other transactions hold. Default 4. */
  readonly busyCommitsAtOnce?: number;
  /** Maximum bytes and steps of a group. A larger batch is a group of its own. */
  readonly groupBytes?: number;
  readonly groupSteps?: number;
  /** Called after each commit of new steps or of a seal. Must not throw. */
  readonly appended?: (appended: Appended) => void;
  /** Called after each group that did not fail, with its committed steps. Must not throw. */
  readonly committed?: (steps: number, seconds: number) => void;
  /** Called before each group, which waits for what it returns. Default: no wait. */
  readonly room?: () => Promise<void> | undefined;
  /** Begins the trace of a group commit of these calls. Returns the store within it. Default: none is traced. */
  readonly traced?: ((calls: readonly Trace[]) => TracedCommit) | undefined;
}

export interface TracedCommit {
  readonly store: Pick<AppendStore, 'append'>;
  readonly end: (error?: unknown) => void;
}

interface Entry {
  readonly source: BatchSource;
  readonly batch: AppendBatch;
  readonly bytes: number;
}

/**
 * The batches for one trajectory, in order. While batches of a queue are in flight, none of the others is taken, so the
 * order is kept.
 */
interface Queue {
  readonly key: bigint;
  entries: Entry[];
  /** Number of entries that were taken. */
  taken: number;
  inFlight: boolean;
  /** Its place in `#ready`. Undefined while its entries are in flight. */
  waiting: Waiting<Queue> | undefined;
}

/** Entries of one trajectory and one source that are committed together. */
interface Portion {
  readonly queue: Queue;
  readonly entries: readonly Entry[];
  /** When the portion fails because its trajectory was found locked, as a time of `performance.now`. */
  readonly waitEnd?: number;
}

/** Time between two attempts to commit portions that wait with `lockWaitMs`, in milliseconds. */
export const LOCK_RETRY_MS = 20;

/**
 * W7: commits the batches of all streams in groups. An idle committer commits at once; while a group commits, batches
 * gather for the next one. What does not fit into a group waits for the next one, the trajectories of several
 * principals in turn.
 */
export class Committer {
  /** Number of batches that wait or are in flight. */
  pending = 0;
  /** New steps that were stored, and the bytes of their batches. */
  storedSteps = 0;
  storedBytes = 0;
  readonly #store: Pick<AppendStore, 'append'>;
  readonly #logger: Logger;
  readonly #options: Required<CommitterOptions>;
  readonly #queues = new Map<bigint, Queue>();
  /** Queues with batches and nothing in flight, by the principal of their next batch. */
  readonly #ready = new InTurn<Queue>();
  /**
   * Portions whose trajectories other transactions hold: those that get a transaction each, and those with `waitEnd`.
   */
  readonly #busy = new InTurn<Portion>();
  readonly #locked: Portion[] = [];
  /** Portions that would delay the rest of their groups. */
  readonly #apart: Portion[] = [];
  #groupsInFlight = 0;
  #busyInFlight = 0;
  #apartInFlight = false;
  #gathering = false;
  #idleWaiters: (() => void)[] = [];

  constructor(store: Pick<AppendStore, 'append'>, logger: Logger, options: CommitterOptions) {
    this.#store = store;
    this.#logger = logger;
    this.#options = {
      busyCommitsAtOnce: 4,
      groupBytes: 4 * 1024 * 1024,
      groupSteps: 4096,
      appended: () => {},
      committed: () => {},
      room: () => undefined,
      traced: undefined,
      ...options,
    };
  }

  submit(source: BatchSource, batch: AppendBatch, bytes: number): void {
    const { key } = batch.ref;
    let queue = this.#queues.get(key);
    if (queue === undefined) {
      queue = { key, entries: [], taken: 0, inFlight: false, waiting: undefined };
      this.#queues.set(key, queue);
    }
    queue.entries.push({ source, batch, bytes });
    this.pending += 1;
    if (!queue.inFlight) this.#makeReady(queue);
    this.#gather();
  }

  #makeReady(queue: Queue): void {
    queue.waiting ??= this.#ready.add(queue.entries[queue.taken]!.batch.caller.actor, queue);
  }

  /** Resolves when no batch waits or is in flight. */
  idle(): Promise<void> {
    if (this.pending === 0) return Promise.resolve();
    return new Promise((resolve) => this.#idleWaiters.push(resolve));
  }

  /** Starts groups after the frames that have already arrived, so that these share a group. */
  #gather(): void {
    if (this.#gathering || this.#ready.size === 0 || this.#groupsInFlight >= this.#options.commitsAtOnce) return;
    this.#gathering = true;
    setImmediate(async () => {
      await this.#options.room();
      this.#gathering = false;
      while (this.#groupsInFlight < this.#options.commitsAtOnce) {
        const group = this.#takeGroup();
        if (group.length === 0) break;
        this.#groupsInFlight += 1;
        void this.#commitGroup(group).finally(() => {
          this.#groupsInFlight -= 1;
          this.#gather();
        });
      }
    });
  }

  #takeGroup(): Portion[] {
    const group: Portion[] = [];
    const room = { bytes: this.#options.groupBytes, steps: this.#options.groupSteps, first: true };
    for (let next = this.#ready.next(); next !== undefined; next = this.#ready.next()) {
      const { item: queue } = next;
      const entries = this.#takeFitting(queue, room);
      if (entries.length === 0 && queue.taken < queue.entries.length) break; // the group is full
      this.#ready.serve(next);
      queue.waiting = undefined;
      if (entries.length === 0) this.#queues.delete(queue.key);
      else {
        queue.inFlight = true;
        group.push({ queue, entries });
      }
    }
    this.#resolveIdle();
    return group;
  }

  /**
   * Takes the next entries of a queue that fit. All are of one source: a rejected batch also rejects later batches of
   * its trajectory in the group, and these must not be another writer's.
   */
  #takeFitting(queue: Queue, room: { bytes: number; steps: number; first: boolean }): Entry[] {
    const entries: Entry[] = [];
    for (; queue.taken < queue.entries.length; queue.taken += 1) {
      const entry = queue.entries[queue.taken]!;
      if (entry.source.over) {
        this.pending -= 1;
        continue;
      }
      const steps = entry.batch.steps.length;
      if (entries.length > 0 && entries[0]!.source !== entry.source) break;
      if (!room.first && (entry.bytes > room.bytes || steps > room.steps)) break;
      room.first = false;
      room.bytes -= entry.bytes;
      room.steps -= steps;
      entries.push(entry);
    }
    if (queue.taken === queue.entries.length || queue.taken > 1024) {
      queue.entries = queue.entries.slice(queue.taken);
      queue.taken = 0;
    }
    return entries;
  }

  async #append(entries: readonly Entry[], wait: Parameters<AppendStore['append']>[1]): Promise<AppendOutcome[]> {
    const batches = entries.map(({ batch }) => batch);
    const { traced } = this.#options;
    const calls = traced === undefined ? NO_CALLS : tracesOf(entries);
    if (traced === undefined || calls.length === 0) return this.#store.append(batches, wait);
    const { store, end } = traced(calls);
    try {
      const outcomes = await store.append(batches, wait);
      end();
      return outcomes;
    } catch (error) {
      end(error);
      throw error;
    }
  }

  /** Commits the portions in one transaction. Returns the error if it is an outage. */
  async #commitGroup(group: readonly Portion[]): Promise<unknown> {
    const batches = group.flatMap((portion) => portion.entries.map(({ batch }) => batch));
    const begun = performance.now();
    let outcomes: AppendOutcome[];
    try {
      outcomes = await this.#append(
        group.flatMap(({ entries }) => entries),
        'never',
      );
    } catch (error) {
      const outage = await this.#groupFailed(group, error);
      this.#commitBusy();
      return outage;
    }
    this.#options.committed(
      batches.reduce((sum, { steps }, i) => (outcomes[i]!.kind === 'committed' ? sum + steps.length : sum), 0),
      (performance.now() - begun) / 1000,
    );
    let next = 0;
    for (const portion of group) {
      const own = outcomes.slice(next, next + portion.entries.length);
      next += portion.entries.length;
      const [first] = own;
      if (first?.kind === 'busy') this.#setAside(portion);
      else if (first?.kind === 'apart') this.#apart.push(portion);
      else this.#settle(portion, own);
    }
    this.#commitApart();
    this.#commitBusy();
    return undefined;
  }

  /** Fails the group after an outage, else commits its portions one by one. Returns the error if it is an outage. */
  async #groupFailed(group: readonly Portion[], error: unknown): Promise<unknown> {
    if (isOutage(error)) {
      for (const portion of group) this.#fail(portion, error);
      if (error instanceof DatabaseSilent) this.#failWaiting(error);
      return error;
    }
    if (error instanceof Contended) return this.#commitHalves(group);
    const batchCount = group.reduce((sum, { entries }) => sum + entries.length, 0);
    if (batchCount === 1) {
      this.#fail(group[0]!, error);
      return undefined;
    }
    this.#logger.warn(
      { err: error, batches: batchCount, trajectories: group.length },
      'a group commit failed; retrying each trajectory alone',
    );
    let outage: unknown;
    for (const portion of group) {
      if (outage === undefined) outage = await this.#commitAlone(portion);
      else this.#fail(portion, outage);
    }
    return outage;
  }

  /** Commits by halves, so that only portions with locked trajectories wait. Returns the error if it is an outage. */
  async #commitHalves(group: readonly Portion[]): Promise<unknown> {
    if (group.length === 1) {
      this.#setAside(group[0]!);
      return undefined;
    }
    const half = Math.ceil(group.length / 2);
    const outage = await this.#commitGroup(group.slice(0, half));
    if (outage === undefined) return this.#commitGroup(group.slice(half));
    for (const portion of group.slice(half)) this.#fail(portion, outage);
    return outage;
  }

  /** A1: fails all batches that wait for a silent database. */
  #failWaiting(error: DatabaseSilent): void {
    for (const queue of this.#queues.values()) {
      const waiting = queue.entries.splice(queue.taken);
      this.pending -= waiting.length;
      for (const { source, batch, bytes } of waiting) if (!source.over) source.failed(batch, bytes, error);
      if (queue.waiting === undefined) continue;
      this.#ready.delete(queue.waiting);
      queue.waiting = undefined;
      this.#queues.delete(queue.key);
    }
    const others = [...this.#busy.clear(), ...this.#locked.splice(0), ...this.#apart.splice(0)];
    for (const portion of others) this.#fail(portion, error);
    this.#resolveIdle();
  }

  /** Keeps a portion whose trajectory another transaction holds, or fails it. */
  #setAside(portion: Portion): void {
    const { source, batch } = portion.entries[0]!;
    if (source.lockWaitMs === undefined) {
      this.#busy.add(batch.caller.actor, portion);
      return;
    }
    const now = performance.now();
    const { waitEnd = now + source.lockWaitMs } = portion;
    if (source.over || now >= waitEnd) {
      this.#fail(portion, trajectoryLocked(batch.trajectoryId, source.lockWaitMs));
      return;
    }
    this.#locked.push({ ...portion, waitEnd });
    if (this.#locked.length === 1) setTimeout(() => this.#commitLocked(), LOCK_RETRY_MS);
  }

  /** Commits the portions that wait with `lockWaitMs`. Those whose trajectories are still locked wait again. */
  #commitLocked(): void {
    const portions = this.#locked.splice(0);
    if (portions.length > 0) void this.#commitGroup(portions).finally(() => this.#gather());
  }

  /** Commits the portions that are apart, in one group at a time, beside the other groups. */
  #commitApart(): void {
    if (this.#apartInFlight || this.#apart.length === 0) return;
    let bytes = 0;
    const many = this.#apart.findIndex(({ entries }) => {
      for (const entry of entries) bytes += entry.bytes;
      return bytes >= this.#options.groupBytes;
    });
    this.#apartInFlight = true;
    void this.#commitGroup(this.#apart.splice(0, many < 0 ? this.#apart.length : many + 1)).finally(() => {
      this.#apartInFlight = false;
      this.#commitApart();
      this.#gather();
    });
  }

  /** Commits portions whose trajectories other transactions hold, each in a transaction that waits for the lock. */
  #commitBusy(): void {
    while (this.#busyInFlight < this.#options.busyCommitsAtOnce) {
      const next = this.#busy.next();
      if (next === undefined) return;
      this.#busy.serve(next);
      this.#busyInFlight += 1;
      void this.#commitAlone(next.item).finally(() => {
        this.#busyInFlight -= 1;
        this.#commitBusy();
        this.#gather();
      });
    }
  }

  /** Commits one portion in its own transaction, which waits for locks. Returns the error if it is an outage. */
  async #commitAlone(portion: Portion): Promise<unknown> {
    const { entries } = portion;
    try {
      const outcomes = await this.#append(entries, 'bounded');
      this.#settle(portion, outcomes);
    } catch (error) {
      if (error instanceof DatabaseSilent) this.#failWaiting(error);
      if (isOutage(error) || entries.length === 1) this.#fail(portion, error);
      else await this.#commitOneByOne(portion);
      if (isOutage(error)) return error;
    }
    return undefined;
  }

  /** Commits the batches one by one, so that those before a failing batch are stored and acked. */
  async #commitOneByOne({ queue, entries }: Portion): Promise<void> {
    for (const entry of entries) {
      if (entry.source.over) break;
      try {
        const [outcome] = await this.#append([entry], 'bounded');
        this.#report(entry, outcome!);
      } catch (error) {
        entry.source.failed(entry.batch, entry.bytes, error);
      }
    }
    this.#release(queue, entries.length);
  }

  #settle({ queue, entries }: Portion, outcomes: readonly AppendOutcome[]): void {
    for (let i = 0; i < entries.length; i += 1) {
      const entry = entries[i]!;
      if (entry.source.over) break; // an earlier entry was rejected
      this.#report(entry, outcomes[i]!);
    }
    this.#release(queue, entries.length);
  }

  #report({ source, batch, bytes }: Entry, outcome: AppendOutcome): void {
    if (outcome.kind === 'committed') {
      const { length } = batch.steps;
      const stored = length - outcome.duplicates;
      this.storedSteps += stored;
      if (stored > 0) this.storedBytes += (bytes * stored) / length;
      this.#options.appended(appendedBy(batch, bytes, outcome));
      source.committed(batch, bytes, outcome);
    } else if (outcome.kind === 'refused') source.failed(batch, bytes, outcome.error);
    else
      source.failed(batch, bytes, new Error(`the store returned ${outcome.kind} for an append that waits for locks`));
  }

  #fail({ queue, entries }: Portion, error: unknown): void {
    for (const { source, batch, bytes } of entries) if (!source.over) source.failed(batch, bytes, error);
    this.#release(queue, entries.length);
  }

  #release(queue: Queue, entries: number): void {
    this.pending -= entries;
    queue.inFlight = false;
    if (queue.entries.length > queue.taken) this.#makeReady(queue);
    else this.#queues.delete(queue.key);
    this.#resolveIdle();
  }

  #resolveIdle(): void {
    if (this.pending > 0 || this.#idleWaiters.length === 0) return;
    const waiters = this.#idleWaiters;
    this.#idleWaiters = [];
    for (const resolve of waiters) resolve();
  }
}

const NO_CALLS: readonly Trace[] = [];

function tracesOf(entries: readonly Entry[]): Trace[] {
  return [...new Set(entries.flatMap(({ source: { trace } }) => trace ?? []))];
}

function appendedBy({ ref, steps, seal }: AppendBatch, bytes: number, outcome: Committed): Appended {
  const { duplicates, compressedSteps = 0 } = outcome;
  const raw = steps.length - duplicates - compressedSteps;
  const rawBytes = compressedSteps === 0 ? bytes : (bytes * raw) / steps.length;
  return { ref, steps: raw, bytes: rawBytes, compressedSteps, sealed: seal !== undefined };
}
