import type { TrajectoryRef } from '../domain/trajectory.ts';
import { type MergeRequest, SEGMENT_BYTES, SEGMENT_STEPS } from '../store/contract/append.ts';
import { isOutage, type Store } from '../store/contract/store.ts';
import { type AppSettings, type Logger, logFailure } from './settings.ts';

/** Steps that were appended to a trajectory. */
export interface Appended {
  readonly ref: TrajectoryRef;
  /** Steps whose segments wait to be merged. */
  readonly steps: number;
  /** About their size in memory. */
  readonly bytes: number;
  /** Steps in segments that were compressed before the commit. Default: 0. */
  readonly compressedSteps?: number;
  /** No steps follow. */
  readonly sealed: boolean;
}

/**
 * Appended steps in compressed segments after which a merge goes past these. Until then, totals of storage and later
 * merges read them.
 */
const MANY_COMPRESSED = 64 * SEGMENT_STEPS;

/** Trajectories that are remembered, and that wait to be merged. The others are found by the sweep. */
const MOST_KNOWN = 100_000;
/**
 * Bound on the time that appends wait for merges, in milliseconds: merges may wait for a database that is down (A1).
 */
const ROOM_MS = 250;
/** Trajectories whose segments are merged in one transaction, if they are small. */
const PER_CALL = 16;
/** Trajectories that one round of the sweep reads. */
const SWEPT = 1000;

interface Unmerged {
  readonly ref: TrajectoryRef;
  steps: number;
  bytes: number;
  compressedSteps: number;
  /** Nothing was appended since the last round. */
  idle: boolean;
}

function isWorthMerging({ steps, bytes, compressedSteps }: Unmerged): boolean {
  return steps >= SEGMENT_STEPS || bytes >= SEGMENT_BYTES || compressedSteps >= MANY_COMPRESSED;
}

/** A trajectory that waits to be merged. */
interface Due extends MergeRequest {
  /** Steps that were appended and not merged, and their bytes. */
  readonly steps: number;
  readonly bytes: number;
}

/**
 * Merges segments in the background: of a trajectory that has grown by a segment's worth, was sealed, or has not grown
 * for a while. No read depends on it. What other processes left unmerged is found by going through all trajectories,
 * some in each round. If steps come faster than they are merged, appends wait (`room`): what is not merged is bounded.
 */
export class Merging {
  readonly #store: Pick<Store, 'mergeSteps' | 'findUnmerged'>;
  readonly #logger: Logger;
  readonly #idleMs: number;
  readonly #mostBytes: number;
  readonly #unmerged = new Map<bigint, Unmerged>();
  readonly #due = new Map<bigint, Due>();
  /** Bytes of what is due or being merged. */
  #bytes = 0;
  #room: Promise<void> | undefined;
  #makeRoom = () => {};
  #hasWarned = false;
  readonly #timer: NodeJS.Timeout | undefined;
  #working: Promise<void> | undefined;
  #sweep: Promise<void> | undefined;
  #swept: TrajectoryRef | undefined;
  #stopped = false;

  constructor(
    store: Pick<Store, 'mergeSteps' | 'findUnmerged'>,
    logger: Logger,
    { mergeIdleMs, mergeBacklogBytes }: Pick<AppSettings, 'mergeIdleMs' | 'mergeBacklogBytes'>,
  ) {
    this.#store = store;
    this.#logger = logger;
    this.#idleMs = mergeIdleMs;
    this.#mostBytes = mergeBacklogBytes;
    if (mergeIdleMs > 0) this.#timer = setInterval(() => this.#round(), mergeIdleMs).unref();
  }

  /** Must be called after each commit. */
  note({ ref, steps, bytes, compressedSteps = 0, sealed }: Appended): void {
    if (this.#stopped || this.#idleMs === 0) return;
    const known = this.#unmerged.get(ref.key) ?? this.#remember(ref);
    known.steps += steps;
    known.bytes += bytes;
    known.compressedSteps += compressedSteps;
    known.idle = false;
    if (!sealed && !isWorthMerging(known)) return;
    const due = { ref, rest: sealed, steps: known.steps, bytes: known.bytes };
    known.steps = 0;
    known.bytes = 0;
    known.compressedSteps = 0;
    if (sealed) this.#unmerged.delete(ref.key);
    this.#merge(due);
  }

  /** Bytes of steps that wait to be merged. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Trajectories that wait to be merged. */
  get trajectories(): number {
    return this.#due.size;
  }

  /** Whether trajectories wait to be merged. */
  get isWorking(): boolean {
    return this.#working !== undefined;
  }

  /** Returns undefined if appends may continue. Otherwise resolves when less is to be merged, or after `ROOM_MS`. */
  room(): Promise<void> | undefined {
    if (!this.#isFull) return undefined;
    this.#warnOnce('appends wait, because steps come faster than their segments are merged');
    this.#room ??= new Promise<void>((resolve) => {
      this.#makeRoom = resolve;
      setTimeout(resolve, ROOM_MS);
    }).finally(() => {
      this.#room = undefined;
    });
    return this.#room;
  }

  get #isFull(): boolean {
    return this.#bytes > this.#mostBytes && this.isWorking;
  }

  /** Resolves when no trajectory waits to be merged. */
  async idle(): Promise<void> {
    while (this.#working !== undefined) await this.#working;
  }

  /** Resolves when the current transaction has ended. What is left is merged after the next start. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#timer);
    this.#due.clear();
    await Promise.all([this.#working, this.#sweep]);
  }

  #remember(ref: TrajectoryRef): Unmerged {
    if (this.#unmerged.size >= MOST_KNOWN) {
      for (const key of this.#unmerged.keys()) if (this.#unmerged.delete(key)) break;
    }
    const known = { ref, steps: 0, bytes: 0, compressedSteps: 0, idle: false };
    this.#unmerged.set(ref.key, known);
    return known;
  }

  #merge({ ref, rest, steps, bytes }: Due): void {
    const before = this.#due.get(ref.key);
    if (this.#due.size >= MOST_KNOWN && before === undefined) {
      this.#warnOnce('more trajectories grow than are merged');
      return;
    }
    const { rest: hadRest = false, steps: more = 0, bytes: moreBytes = 0 } = before ?? {};
    this.#due.set(ref.key, { ref, rest: rest || hadRest, steps: steps + more, bytes: bytes + moreBytes });
    this.#bytes += bytes;
    this.#working ??= this.#work().finally(() => {
      this.#working = undefined;
      this.#makeRoom();
    });
  }

  /** Warns once until everything is merged. */
  #warnOnce(message: string): void {
    if (!this.#hasWarned) this.#logger.warn({ waiting: this.#due.size, bytes: this.#bytes }, message);
    this.#hasWarned = true;
  }

  async #work(): Promise<void> {
    while (this.#due.size > 0) {
      const requests = [...this.#due.values()].slice(0, PER_CALL);
      for (const { ref } of requests) this.#due.delete(ref.key);
      try {
        this.#keep(requests, await this.#mergeRows(requests));
      } catch (error) {
        await this.#workAlone(requests, error);
      }
      if (!this.#isFull) this.#makeRoom();
    }
    this.#hasWarned = false;
  }

  /** After a failure, merges the trajectories one by one, so that one of them does not stop the others. */
  async #workAlone(requests: readonly Due[], failure: unknown): Promise<void> {
    if (isOutage(failure) || requests.length === 1) {
      // The segments stay as they are. The sweep finds them again.
      logFailure(this.#logger, failure, 'segments could not be merged', { waiting: this.#due.size });
      this.#keep(requests, []);
      if (!isOutage(failure)) return;
      this.#due.clear();
      this.#bytes = 0;
      return;
    }
    for (const request of requests) {
      try {
        this.#keep([request], await this.#mergeRows([request]));
      } catch (error) {
        await this.#workAlone([request], error);
      }
    }
  }

  #mergeRows(requests: readonly Due[]): Promise<MergeRequest[]> {
    return this.#store.mergeSteps(requests.map(({ ref, rest, steps }) => ({ ref, rest, steps })));
  }

  #keep(requests: readonly Due[], left: readonly MergeRequest[]): void {
    const leftSteps = new Map(left.map(({ ref, steps = 0 }) => [ref.key, steps]));
    for (const { ref, rest, steps, bytes } of requests) {
      this.#bytes -= bytes;
      const still = leftSteps.get(ref.key);
      if (still === undefined || this.#stopped) continue;
      this.#merge({ ref, rest, steps: still, bytes: steps === 0 ? 0 : (bytes * still) / steps });
    }
  }

  #round(): void {
    for (const known of this.#unmerged.values()) {
      if (known.idle) {
        this.#unmerged.delete(known.ref.key);
        this.#merge({ ...known, rest: true });
      }
      known.idle = true;
    }
    this.#sweep ??= this.#findMore().finally(() => {
      this.#sweep = undefined;
    });
  }

  async #findMore(): Promise<void> {
    try {
      const { found, next } = await this.#store.findUnmerged(this.#swept, SWEPT, this.#idleMs / 1000);
      this.#swept = next;
      for (const ref of found)
        if (!this.#stopped && !this.#unmerged.has(ref.key)) this.#merge({ ref, rest: true, steps: 0, bytes: 0 });
    } catch (error) {
      logFailure(this.#logger, error, 'segments to merge could not be looked up');
    }
  }
}
