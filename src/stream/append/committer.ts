import type { AppendBatch, AppendOutcome, AppendStore } from '../../store/contract/append.ts';
import { Contended, DatabaseSilent, isOutage } from '../../store/contract/store.ts';
import type { Logger } from '../logger.ts';

export type Committed = Extract<AppendOutcome, { kind: 'committed' }>;

/**
 * Where batches come from: one append stream, or one unary call. Its batches are committed in order; after a failure
 * the rest is dropped.
 */
export interface BatchSource {
  /** True from `failed` on: nothing more of it is committed. */
  readonly over: boolean;
  /** Durable. Called in the order of submission. Must not throw. */
  committed(batch: AppendBatch, bytes: number, outcome: Committed): void;
  /**
   * Refused, or not stored, or (DATABASE_UNAVAILABLE) unknown. Called once at most; the source is `over` from here on.
   * Must not throw.
   */
  failed(batch: AppendBatch, bytes: number, error: unknown): void;
}

export interface CommitterOptions {
  /** Groups in flight at once. Groups in flight share no trajectory. */
  readonly lanes: number;
  /** Trajectories that another transaction holds and that are waited for at once, each in a transaction of its own. */
  readonly busyLanes?: number;
  /** A group ends before it has more bytes or steps than this; it has at least one batch. */
  readonly groupBytes?: number;
  readonly groupSteps?: number;
}

interface Entry {
  readonly source: BatchSource;
  readonly batch: AppendBatch;
  readonly bytes: number;
}

/**
 * What waits for one trajectory, in order. While something of it is in flight, nothing else of it is taken: that keeps
 * its order.
 */
interface Line {
  readonly key: bigint;
  entries: Entry[];
  /** Entries before it were taken. */
  taken: number;
  inFlight: boolean;
}

/** Entries of one trajectory and of one source, taken together. */
interface Portion {
  readonly line: Line;
  readonly entries: readonly Entry[];
}

/**
 * W7: takes what has arrived from all streams and commits it together, at once when idle; while one group commits, the
 * next gathers.
 */
export class Committer {
  /** Batches that wait or are in flight. */
  pending = 0;
  readonly #store: Pick<AppendStore, 'append'>;
  readonly #logger: Logger;
  readonly #limits: Required<CommitterOptions>;
  readonly #lines = new Map<bigint, Line>();
  /** Lines with work and nothing in flight, the one that waits longest first. */
  readonly #ready = new Set<Line>();
  readonly #busy: Portion[] = [];
  #groupsInFlight = 0;
  #busyInFlight = 0;
  #gathering = false;
  #idleWaiters: (() => void)[] = [];

  constructor(store: Pick<AppendStore, 'append'>, logger: Logger, options: CommitterOptions) {
    this.#store = store;
    this.#logger = logger;
    this.#limits = { busyLanes: 4, groupBytes: 4 * 1024 * 1024, groupSteps: 4096, ...options };
  }

  submit(source: BatchSource, batch: AppendBatch, bytes: number): void {
    const { key } = batch.ref;
    let line = this.#lines.get(key);
    if (line === undefined) {
      line = { key, entries: [], taken: 0, inFlight: false };
      this.#lines.set(key, line);
    }
    line.entries.push({ source, batch, bytes });
    this.pending += 1;
    if (!line.inFlight) this.#ready.add(line);
    this.#gather();
  }

  /** Resolves when nothing waits and nothing is in flight. */
  idle(): Promise<void> {
    if (this.pending === 0) return Promise.resolve();
    return new Promise((resolve) => this.#idleWaiters.push(resolve));
  }

  /** Starts groups after the frames that have already arrived, so that these share a group. */
  #gather(): void {
    if (this.#gathering || this.#ready.size === 0 || this.#groupsInFlight >= this.#limits.lanes) return;
    this.#gathering = true;
    setImmediate(() => {
      this.#gathering = false;
      while (this.#groupsInFlight < this.#limits.lanes) {
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
    const room = { bytes: this.#limits.groupBytes, steps: this.#limits.groupSteps, first: true };
    for (const line of this.#ready) {
      const entries = this.#takeFrom(line, room);
      if (entries.length === 0 && line.taken < line.entries.length) break; // the group is full
      this.#ready.delete(line);
      if (entries.length === 0) this.#lines.delete(line.key);
      else {
        line.inFlight = true;
        group.push({ line, entries });
      }
    }
    this.#tellIdle();
    return group;
  }

  /**
   * The next entries of a line, all of one source: a batch that is refused takes the later ones of its trajectory with
   * it, and one writer's refusal must not become another's.
   */
  #takeFrom(line: Line, room: { bytes: number; steps: number; first: boolean }): Entry[] {
    const entries: Entry[] = [];
    for (; line.taken < line.entries.length; line.taken += 1) {
      const entry = line.entries[line.taken]!;
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
    if (line.taken === line.entries.length || line.taken > 1024) {
      line.entries = line.entries.slice(line.taken);
      line.taken = 0;
    }
    return entries;
  }

  /** Returns the error if it is an outage. */
  async #commitGroup(group: readonly Portion[]): Promise<unknown> {
    const batches = group.flatMap((portion) => portion.entries.map(({ batch }) => batch));
    let outcomes: AppendOutcome[];
    try {
      outcomes = await this.#store.append(batches, 'never');
    } catch (error) {
      const outage = await this.#groupFailed(group, batches.length, error);
      this.#commitBusy();
      return outage;
    }
    let next = 0;
    for (const portion of group) {
      const own = outcomes.slice(next, next + portion.entries.length);
      next += portion.entries.length;
      if (own[0]?.kind === 'busy') this.#busy.push(portion);
      else this.#settle(portion, own);
    }
    this.#commitBusy();
    return undefined;
  }

  /** An outage fails the group. Anything else may concern only a part of it. */
  async #groupFailed(group: readonly Portion[], batches: number, error: unknown): Promise<unknown> {
    if (isOutage(error)) {
      for (const portion of group) this.#fail(portion, error);
      if (error instanceof DatabaseSilent) this.#failWaiting(error);
      return error;
    }
    if (error instanceof Contended) return this.#commitHalves(group);
    const [only] = group;
    if (batches === 1 && only !== undefined) {
      this.#fail(only, error);
      return undefined;
    }
    this.#logger.warn(
      { err: error, batches, trajectories: group.length },
      'a group commit failed; trying each part alone',
    );
    let outage: unknown;
    for (const portion of group) {
      if (outage === undefined) outage = await this.#commitAlone(portion);
      else this.#fail(portion, outage);
    }
    return outage;
  }

  /** Finds those that wait for other transactions: they wait alone, and all others commit. */
  async #commitHalves(group: readonly Portion[]): Promise<unknown> {
    if (group.length === 1) {
      this.#busy.push(...group);
      return undefined;
    }
    const half = Math.ceil(group.length / 2);
    const outage = await this.#commitGroup(group.slice(0, half));
    if (outage === undefined) return this.#commitGroup(group.slice(half));
    for (const portion of group.slice(half)) this.#fail(portion, outage);
    return outage;
  }

  /**
   * A1: those that wait for a silent database have waited long enough. What their sources sent behind is dropped when
   * its turn comes.
   */
  #failWaiting(error: DatabaseSilent): void {
    for (const { entries, taken } of this.#lines.values()) {
      for (const { source, batch, bytes } of entries.slice(taken)) {
        if (!source.over) source.failed(batch, bytes, error);
      }
    }
    for (const portion of this.#busy.splice(0)) this.#fail(portion, error);
  }

  /** Trajectories that another transaction holds are waited for in transactions of their own, beside the groups. */
  #commitBusy(): void {
    while (this.#busyInFlight < this.#limits.busyLanes) {
      const portion = this.#busy.shift();
      if (portion === undefined) return;
      this.#busyInFlight += 1;
      void this.#commitAlone(portion).finally(() => {
        this.#busyInFlight -= 1;
        this.#commitBusy();
        this.#gather();
      });
    }
  }

  /** Returns the error if it is an outage. */
  async #commitAlone(portion: Portion): Promise<unknown> {
    const { entries } = portion;
    try {
      const outcomes = await this.#store.append(
        entries.map(({ batch }) => batch),
        'bounded',
      );
      this.#settle(portion, outcomes);
    } catch (error) {
      if (error instanceof DatabaseSilent) this.#failWaiting(error);
      if (isOutage(error) || entries.length === 1) this.#fail(portion, error);
      else await this.#commitOneByOne(portion);
      if (isOutage(error)) return error;
    }
    return undefined;
  }

  /** So that what came before a batch that cannot be stored is stored and acked. */
  async #commitOneByOne({ line, entries }: Portion): Promise<void> {
    for (const entry of entries) {
      if (entry.source.over) break;
      try {
        const [outcome] = await this.#store.append([entry.batch], 'bounded');
        this.#tell(entry, outcome!);
      } catch (error) {
        entry.source.failed(entry.batch, entry.bytes, error);
      }
    }
    this.#release(line, entries.length);
  }

  #settle({ line, entries }: Portion, outcomes: readonly AppendOutcome[]): void {
    for (let i = 0; i < entries.length; i += 1) {
      const entry = entries[i]!;
      if (entry.source.over) break; // the refusal of an earlier one
      this.#tell(entry, outcomes[i]!);
    }
    this.#release(line, entries.length);
  }

  #tell({ source, batch, bytes }: Entry, outcome: AppendOutcome): void {
    if (outcome.kind === 'committed') source.committed(batch, bytes, outcome);
    else if (outcome.kind === 'refused') source.failed(batch, bytes, outcome.error);
    else source.failed(batch, bytes, new Error('the store answered busy to a call that waits'));
  }

  #fail({ line, entries }: Portion, error: unknown): void {
    const { source, batch, bytes } = entries[0]!;
    if (!source.over) source.failed(batch, bytes, error);
    this.#release(line, entries.length);
  }

  #release(line: Line, entries: number): void {
    this.pending -= entries;
    line.inFlight = false;
    if (line.entries.length > line.taken) this.#ready.add(line);
    else this.#lines.delete(line.key);
    this.#tellIdle();
  }

  #tellIdle(): void {
    if (this.pending > 0 || this.#idleWaiters.length === 0) return;
    const waiters = this.#idleWaiters;
    this.#idleWaiters = [];
    for (const resolve of waiters) resolve();
  }
}
