import { InTurn } from '../../../../queue/in_turn.ts';
import type { PoolLoad } from '../../../contract/load.ts';
import type { CallScope } from '../../../contract/store.ts';

/** Run time in milliseconds above which a read marks its kind as slow. */
const QUICK_MS = 50;
/** Reads up to this run time do not tire a lane. */
const SHORT_MS = 5;
/** A kind stays slow for this multiple of the duration of its slow read. */
const SLOW_TIMES = 20;
/** Bound on the kinds that are remembered. The least recently used are forgotten. */
const MOST_KINDS = 4000;

/** Result of a read and its run time in milliseconds, without the time that it waited. */
export interface Timed<T> {
  readonly value: T;
  readonly milliseconds: number;
}

export interface ReadLanesOptions {
  /** Lanes for reads of any length. */
  readonly long: number;
  /** Additional lanes for quick reads only. */
  readonly quick: number;
  readonly quickMs?: number | undefined;
  /** For how long a lane stays empty after work of this duration, in milliseconds. Default: 0. */
  readonly restFor?: (milliseconds: number) => number;
}

/** A read that waits for a lane or runs in one. */
interface Entry {
  readonly kind: string;
  /** Starts the read. Resolves with its run time when it has ended, or with undefined if it failed. */
  readonly start: (lane: number) => Promise<number | undefined>;
  readonly reject: (error: unknown) => void;
  startedAt: number;
}

/**
 * Runs reads in lanes: those of a namespace in order of arrival, and namespaces in turn. Some lanes serve only kinds
 * whose last read was quick, so that long reads do not delay a read of a single row. Writes do not use lanes: they have
 * threads and connections of their own.
 */
export class ReadLanes {
  readonly #quickLanes: number;
  readonly #quickMs: number;
  /** Running read by lane. The first lanes serve quick reads only. */
  readonly #running: (Entry | undefined)[];
  /** Lanes that stay empty for a while. */
  readonly #resting = new Set<number>();
  readonly #restFor: (milliseconds: number) => number;
  /** By lane, for how long reads that were not short have run in it since it rested, in milliseconds. */
  readonly #worked: number[];
  /** By kind, until when it counts as slow. A kind that is not here has not ended yet, and counts as slow. */
  readonly #slowUntil = new Map<string, number>();
  readonly #waiting = new InTurn<Entry>();
  readonly #pauses: ((resume: () => void) => void)[] = [];
  #paused = false;
  #closed: Error | undefined;

  constructor({ long, quick, quickMs = QUICK_MS, restFor = () => 0 }: ReadLanesOptions) {
    this.#restFor = restFor;
    this.#running = Array.from({ length: quick + long }, () => undefined);
    this.#worked = this.#running.map(() => 0);
    this.#quickLanes = quick;
    this.#quickMs = quickMs;
  }

  /**
   * Calls `work` when a lane is free. A kind is the text of a statement: reads of one kind are expected to take about
   * the same time. If the call ends while the read waits, rejects with the reason of its signal. Once `work` runs, it
   * must observe the signal itself.
   */
  run<T>(kind: string, call: CallScope | undefined, work: (lane: number) => Promise<Timed<T>>): Promise<T> {
    const signal = call?.signal;
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.#closed !== undefined) return Promise.reject(this.#closed);
    return new Promise((resolve, reject) => {
      const leave = () => {
        this.#waiting.delete(place);
        reject(signal?.reason);
      };
      const stopWaiting = () => signal?.removeEventListener('abort', leave);
      const entry: Entry = {
        kind,
        startedAt: 0,
        start: async (lane) => {
          stopWaiting();
          try {
            const { value, milliseconds } = await work(lane);
            resolve(value);
            return milliseconds;
          } catch (error) {
            reject(error);
            return undefined;
          }
        },
        reject: (error) => {
          stopWaiting();
          reject(error);
        },
      };
      signal?.addEventListener('abort', leave);
      const place = this.#waiting.add(call?.namespace ?? '', entry);
      this.#dispatch();
    });
  }

  get load(): PoolLoad {
    const used = this.#running.filter((entry) => entry !== undefined).length;
    return { used, most: this.#running.length, waiting: this.#waiting.size };
  }

  /**
   * Resolves when no read runs. No read starts until the returned function is called. While long reads end, quick reads
   * still start, so the wait lasts at most as long as the longest read.
   */
  pause(): Promise<() => void> {
    return new Promise((resolve) => {
      this.#pauses.push(resolve);
      this.#dispatch();
    });
  }

  /** Rejects waiting reads. Running reads continue. */
  rejectWaiting(error: unknown): void {
    for (const { reject } of this.#waiting.clear()) reject(error);
  }

  /** Rejects all reads that have not started, now and later. Requested pauses never begin. */
  close(error: Error): void {
    this.#closed = error;
    this.#pauses.length = 0;
    this.rejectWaiting(error);
  }

  #dispatch(): void {
    if (this.#paused) return;
    if (this.#pauses.length > 0 && this.#running.every((entry) => entry === undefined)) {
      this.#hold();
      return;
    }
    for (const lane of this.#running.keys()) {
      if (this.#running[lane] !== undefined || this.#resting.has(lane)) continue;
      const entry = this.#takeFor(lane);
      if (entry !== undefined) this.#start(entry, lane);
    }
  }

  #hold(): void {
    this.#paused = true;
    this.#pauses.shift()?.(() => {
      this.#paused = false;
      this.#dispatch();
    });
  }

  /** Takes the next waiting read that the lane may run now. */
  #takeFor(lane: number): Entry | undefined {
    const now = performance.now();
    for (const entry of this.#running) if (entry !== undefined) this.#noteLong(entry, now);
    const pausing = this.#pauses.length > 0;
    if (pausing && !this.#running.some((entry) => entry !== undefined && !this.#isQuick(entry, now))) return undefined;
    const quickOnly = pausing || lane < this.#quickLanes;
    const next = this.#waiting.next(quickOnly ? (entry) => this.#isQuick(entry, now) : undefined);
    if (next !== undefined) this.#waiting.serve(next);
    return next?.item;
  }

  #isQuick({ kind }: Entry, now: number): boolean {
    return now >= (this.#slowUntil.get(kind) ?? Number.POSITIVE_INFINITY);
  }

  #start(entry: Entry, lane: number): void {
    this.#running[lane] = entry;
    entry.startedAt = performance.now();
    void entry.start(lane).then((milliseconds) => {
      this.#running[lane] = undefined;
      const now = performance.now();
      if (milliseconds === undefined) this.#noteLong(entry, now);
      else this.#learn(entry.kind, milliseconds, now);
      this.#rest(lane, milliseconds ?? now - entry.startedAt);
      this.#dispatch();
    });
  }

  /**
   * Lets a lane rest once its reads have run as long as one read that is not quick. Reads of several lanes share the
   * processors, so each counts as often as lanes are busy: however many callers there are, they take about as much as
   * one.
   */
  #rest(lane: number, milliseconds: number): void {
    if (milliseconds <= SHORT_MS) return;
    const worked = this.#worked[lane]! + milliseconds;
    this.#worked[lane] = worked > this.#quickMs ? 0 : worked;
    if (worked <= this.#quickMs) return;
    const busy = 1 + this.#running.filter((entry) => entry !== undefined).length;
    const restMs = this.#restFor(worked * busy);
    if (restMs === 0) return;
    this.#resting.add(lane);
    setTimeout(() => {
      this.#resting.delete(lane);
      this.#dispatch();
    }, restMs).unref();
  }

  /** A read that has not ended well so far says nothing, except that it takes long. */
  #noteLong({ kind, startedAt }: Entry, now: number): void {
    if (now - startedAt > this.#quickMs) this.#learn(kind, now - startedAt, now);
  }

  #learn(kind: string, milliseconds: number, now: number): void {
    const before = this.#slowUntil.get(kind) ?? Number.NEGATIVE_INFINITY;
    const slowUntil = milliseconds > this.#quickMs ? now + milliseconds * SLOW_TIMES : before;
    this.#slowUntil.delete(kind); // Reinsertion moves the kind to the end of the order of use.
    this.#slowUntil.set(kind, slowUntil);
    for (const oldest of this.#slowUntil.keys()) {
      if (this.#slowUntil.size <= MOST_KINDS) break;
      this.#slowUntil.delete(oldest);
    }
  }
}
