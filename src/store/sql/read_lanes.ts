/** A read that runs longer makes its kind a slow one. */
const QUICK_MS = 50;
/** A kind stays slow for so many times the duration of its slow read. */
const SLOW_TIMES = 20;
/** Kinds whose speed is remembered, the ones used last. */
const MOST_KINDS = 4000;

/** The result of a read and its run time in milliseconds. Time that it waited is not included. */
export interface Timed<T> {
  readonly value: T;
  readonly milliseconds: number;
}

export interface ReadLanesOptions {
  /** Reads of any length that run at a time. */
  readonly long: number;
  /** Further lanes, for quick reads only. */
  readonly quick: number;
  readonly quickMs?: number | undefined;
  /** For how long a lane stays empty after a read that was not quick, in milliseconds. Default: 0. */
  readonly restFor?: (milliseconds: number) => number;
}

/** A read that waits for a lane or runs in one. */
interface Entry {
  readonly kind: string;
  /** Resolves when the read has ended, with its run time; undefined if it failed. */
  readonly start: (lane: number) => Promise<number | undefined>;
  readonly reject: (error: unknown) => void;
  startedAt: number;
}

/**
 * Runs reads in lanes, in order of arrival. Some lanes serve only reads of kinds that were quick the last time, so that long reads never hold up
 * a look at a single row. Writes do not use lanes: threads and connections outside of them stay free for writes.
 */
export class ReadLanes {
  private readonly quickLanes: number;
  private readonly quickMs: number;
  /** By lane, the read that runs there. The first lanes are those for quick reads. */
  private readonly running: (Entry | undefined)[];
  /** Lanes that stay empty for a while. */
  private readonly resting = new Set<number>();
  private readonly restFor: (milliseconds: number) => number;
  /** By kind, until when it counts as slow. A kind that is not here has not ended yet, and counts as slow. */
  private readonly slowUntil = new Map<string, number>();
  private readonly waiting: Entry[] = [];
  private readonly pauses: ((resume: () => void) => void)[] = [];
  private paused = false;
  private closed: Error | undefined;

  constructor({ long, quick, quickMs = QUICK_MS, restFor = () => 0 }: ReadLanesOptions) {
    this.restFor = restFor;
    this.running = Array.from({ length: quick + long }, () => undefined);
    this.quickLanes = quick;
    this.quickMs = quickMs;
  }

  /**
   * Calls `work` as soon as there is a lane for it. Reads of one kind are expected to take about the same time: a kind is a statement's text. If the
   * signal is aborted while the read waits, rejects with the signal's reason; afterwards `work` has to end by the signal itself.
   */
  run<T>(kind: string, signal: AbortSignal | undefined, work: (lane: number) => Promise<Timed<T>>): Promise<T> {
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.closed !== undefined) return Promise.reject(this.closed);
    return new Promise((resolve, reject) => {
      const leave = () => {
        this.waiting.splice(this.waiting.indexOf(entry), 1);
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
      this.waiting.push(entry);
      this.dispatch();
    });
  }

  /**
   * Resolves when no read runs. No read starts before the returned function is called. Waits for long reads to end, while quick reads still start; so
   * the wait can last as long as the longest read.
   */
  pause(): Promise<() => void> {
    return new Promise((resolve) => {
      this.pauses.push(resolve);
      this.dispatch();
    });
  }

  /** Rejects the reads that wait. Reads that run go on. */
  rejectWaiting(error: unknown): void {
    for (const { reject } of this.waiting.splice(0)) reject(error);
  }

  /** Rejects all reads that have not started, now and later. Pauses that were asked for never begin. */
  close(error: Error): void {
    this.closed = error;
    this.pauses.length = 0;
    this.rejectWaiting(error);
  }

  private dispatch(): void {
    if (this.paused) return;
    if (this.pauses.length > 0 && this.running.every((entry) => entry === undefined)) {
      this.hold();
      return;
    }
    for (const lane of this.running.keys()) {
      if (this.running[lane] !== undefined || this.resting.has(lane)) continue;
      const entry = this.takeFor(lane);
      if (entry !== undefined) this.start(entry, lane);
    }
  }

  private hold(): void {
    this.paused = true;
    this.pauses.shift()?.(() => {
      this.paused = false;
      this.dispatch();
    });
  }

  /** Takes the read that has waited longest, of those that may run in the lane now. */
  private takeFor(lane: number): Entry | undefined {
    const now = performance.now();
    for (const entry of this.running) if (entry !== undefined) this.noteLong(entry, now);
    const pausing = this.pauses.length > 0;
    if (pausing && !this.running.some((entry) => entry !== undefined && !this.isQuick(entry, now))) return undefined;
    const quickOnly = pausing || lane < this.quickLanes;
    const at = quickOnly ? this.waiting.findIndex((entry) => this.isQuick(entry, now)) : 0;
    return at === -1 ? undefined : this.waiting.splice(at, 1)[0];
  }

  private isQuick({ kind }: Entry, now: number): boolean {
    return now >= (this.slowUntil.get(kind) ?? Number.POSITIVE_INFINITY);
  }

  private start(entry: Entry, lane: number): void {
    this.running[lane] = entry;
    entry.startedAt = performance.now();
    void entry.start(lane).then((milliseconds) => {
      this.running[lane] = undefined;
      const now = performance.now();
      if (milliseconds === undefined) this.noteLong(entry, now);
      else this.learn(entry.kind, milliseconds, now);
      this.rest(lane, milliseconds ?? now - entry.startedAt);
      this.dispatch();
    });
  }

  private rest(lane: number, milliseconds: number): void {
    const restMs = milliseconds > this.quickMs ? this.restFor(milliseconds) : 0;
    if (restMs === 0) return;
    this.resting.add(lane);
    setTimeout(() => {
      this.resting.delete(lane);
      this.dispatch();
    }, restMs).unref();
  }

  /** A read that has not ended well so far says nothing, except that it takes long. */
  private noteLong({ kind, startedAt }: Entry, now: number): void {
    if (now - startedAt > this.quickMs) this.learn(kind, now - startedAt, now);
  }

  private learn(kind: string, milliseconds: number, now: number): void {
    const before = this.slowUntil.get(kind) ?? Number.NEGATIVE_INFINITY;
    const slowUntil = milliseconds > this.quickMs ? now + milliseconds * SLOW_TIMES : before;
    this.slowUntil.delete(kind); // so that it comes last
    this.slowUntil.set(kind, slowUntil);
    for (const oldest of this.slowUntil.keys()) {
      if (this.slowUntil.size <= MOST_KINDS) break;
      this.slowUntil.delete(oldest);
    }
  }
}
