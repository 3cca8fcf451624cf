/** Work that took longer than this makes its kind a slow one, until work of that kind is quick again. */
const QUICK_MS = 50;
/** Kinds whose speed is remembered. They are few, so this is a bound against surprises. */
const MOST_KINDS = 2000;

/** What work gives, and how long it took without what it waited for. */
export interface Timed<T> {
  readonly value: T;
  readonly milliseconds: number;
}

/** Work that waits for a lane or runs in one. */
interface Entry {
  readonly kind: string;
  readonly quick: boolean;
  /** Resolves when the work has ended, with how long it took; undefined: it failed. */
  readonly start: (lane: number) => Promise<number | undefined>;
  readonly reject: (error: unknown) => void;
}

/**
 * Lanes that reads run in, in order of arrival. Lane 0 serves only work that was quick the last time, so that long reads never hold up a look at a
 * single row; what else the database does for others, such as writes, is not of these lanes and always finds room beside them.
 */
export class ReadLanes {
  /** By lane, what runs there. */
  private readonly running: (Entry | undefined)[];
  private readonly quickKinds = new Set<string>();
  private readonly waiting: Entry[] = [];
  private readonly pauses: ((resume: () => void) => void)[] = [];
  private paused = false;
  private closed: Error | undefined;
  private readonly quickMs: number;

  /** `lanes`: how many reads that may take long run at a time. */
  constructor(lanes: number, quickMs = QUICK_MS) {
    this.running = Array.from({ length: lanes + 1 }, () => undefined);
    this.quickMs = quickMs;
  }

  /**
   * Runs `work` as soon as there is a lane for it. Reads of one kind take about the same time: a kind is a statement's text. Rejects with the signal's
   * reason when it is aborted while the work waits; afterwards the work itself ends by the signal.
   */
  run<T>(kind: string, signal: AbortSignal | undefined, work: (lane: number) => Promise<Timed<T>>): Promise<T> {
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.closed !== undefined) return Promise.reject(this.closed);
    return new Promise((resolve, reject) => {
      const leave = () => {
        this.waiting.splice(this.waiting.indexOf(entry), 1);
        reject(signal?.reason);
      };
      const start = async (lane: number): Promise<number | undefined> => {
        signal?.removeEventListener('abort', leave);
        try {
          const { value, milliseconds } = await work(lane);
          resolve(value);
          return milliseconds;
        } catch (error) {
          reject(error);
          return undefined;
        }
      };
      const entry: Entry = { kind, quick: this.quickKinds.has(kind), start, reject };
      signal?.addEventListener('abort', leave);
      this.waiting.push(entry);
      this.dispatch();
    });
  }

  /**
   * Resolves at a moment when nothing runs; nothing starts before `resume` is called. Work that may take long is waited for, while quick work still
   * starts: so it may take as long as the longest read.
   */
  pause(): Promise<() => void> {
    return new Promise((resolve) => {
      this.pauses.push(resolve);
      this.dispatch();
    });
  }

  /** Rejects what waits and what comes with this error. What runs goes on. */
  close(error: Error): void {
    this.closed = error;
    for (const { reject } of this.waiting.splice(0)) reject(error);
  }

  private dispatch(): void {
    if (this.paused) return;
    if (this.pauses.length > 0 && this.running.every((entry) => entry === undefined)) {
      this.hold();
      return;
    }
    for (const lane of this.running.keys()) {
      if (this.running[lane] !== undefined) continue;
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

  /** What has waited longest, of what may run in the lane now. */
  private takeFor(lane: number): Entry | undefined {
    const pausing = this.pauses.length > 0;
    if (pausing && !this.running.some((entry) => entry?.quick === false)) return undefined;
    const quickOnly = pausing || lane === 0;
    const at = quickOnly ? this.waiting.findIndex(({ quick }) => quick) : 0;
    return at === -1 ? undefined : this.waiting.splice(at, 1)[0];
  }

  private start(entry: Entry, lane: number): void {
    this.running[lane] = entry;
    void entry.start(lane).then((milliseconds) => {
      this.running[lane] = undefined;
      if (milliseconds !== undefined) this.learn(entry.kind, milliseconds);
      this.dispatch();
    });
  }

  private learn(kind: string, milliseconds: number): void {
    if (milliseconds > this.quickMs) {
      this.quickKinds.delete(kind);
      return;
    }
    if (this.quickKinds.size >= MOST_KINDS) this.quickKinds.clear();
    this.quickKinds.add(kind);
  }
}
