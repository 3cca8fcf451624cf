import { translateError } from './errors.ts';
import type { ReadJob, ReadResult } from './read_job.ts';
import { type ReadOutcome, ReadThreadHandle } from './read_thread_handle.ts';

/** A job that took longer than this makes its kind a slow one, until one of that kind is quick again. */
const QUICK_MS = 50;
/** Kinds of jobs whose speed is remembered. They are few, so this is a bound against surprises. */
const MOST_KINDS = 2000;

/** A job that waits for a thread or runs on one. */
interface Entry {
  readonly job: ReadJob;
  /** Jobs of one kind take about the same time: a statement's text. */
  readonly kind: string;
  readonly quick: boolean;
  /** Undefined while it waits. */
  thread: ReadThreadHandle | undefined;
  over: boolean;
  readonly resolve: (result: unknown[]) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Reads a file of SQLite on threads, since a statement of `node:sqlite` blocks the thread that runs it. One thread serves only jobs that were
 * quick the last time, so that long ones never hold up a look at a single row. Jobs start in order of arrival, threads when they are needed.
 */
export class ReadThreads {
  private readonly reserved: ReadThreadHandle;
  private readonly general: readonly ReadThreadHandle[];
  private readonly running = new Set<Entry>();
  private readonly quickKinds = new Set<string>();
  private waiting: Entry[] = [];
  private pauses: ((resume: () => void) => void)[] = [];
  private held = false;
  private closed = false;

  /** `threads`: how many jobs that may take long run at a time. */
  constructor(path: string, threads: number) {
    this.reserved = new ReadThreadHandle(path);
    this.general = Array.from({ length: threads }, () => new ReadThreadHandle(path));
  }

  /** When the signal is aborted it rejects with the signal's reason at once, and the job ends soon after. */
  run<Job extends ReadJob>(job: Job, signal: AbortSignal | undefined): Promise<ReadResult<Job>> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      if (this.closed) throw storeClosed();
      const leave = () => this.leave(entry, signal?.reason);
      const settled = <T>(settle: (value: T) => void) => {
        return (value: T) => {
          signal?.removeEventListener('abort', leave);
          settle(value);
        };
      };
      const kind = job.kind === 'stretches' ? job.kind : job.text;
      const entry: Entry = {
        ...{ job, kind, quick: this.quickKinds.has(kind), thread: undefined, over: false },
        ...{ resolve: settled(resolve as (result: unknown[]) => void), reject: settled(reject) },
      };
      signal?.addEventListener('abort', leave);
      this.waiting.push(entry);
      this.dispatch();
    });
  }

  /**
   * Resolves at a moment without a running job. Nothing starts before `resume` is called. Jobs that may take long are waited for, while quick
   * ones still start; so it may take as long as the longest job.
   */
  pause(): Promise<() => void> {
    return new Promise((resolve) => {
      this.pauses.push(resolve);
      this.dispatch();
    });
  }

  /** Ends all jobs with an error. Idempotent. */
  async close(): Promise<void> {
    this.closed = true;
    for (const entry of [...this.waiting, ...this.running]) this.leave(entry, storeClosed());
    await Promise.all([this.reserved, ...this.general].map((thread) => thread.stop()));
  }

  private leave(entry: Entry, reason: unknown): void {
    if (entry.over) return;
    entry.over = true;
    entry.thread?.cancel();
    entry.reject(reason);
  }

  private dispatch(): void {
    if (this.held) return;
    if (this.pauses.length > 0 && this.running.size === 0) {
      this.hold();
      return;
    }
    for (const thread of [this.reserved, ...this.general]) {
      if (thread.busy) continue;
      const entry = this.takeFor(thread);
      if (entry !== undefined) this.start(entry, thread);
    }
  }

  private hold(): void {
    this.held = true;
    const resume = () => {
      this.held = false;
      this.dispatch();
    };
    this.pauses.shift()?.(resume);
  }

  /** The job that has waited longest, of those that the thread may run now. */
  private takeFor(thread: ReadThreadHandle): Entry | undefined {
    this.waiting = this.waiting.filter(({ over }) => !over);
    const pausing = this.pauses.length > 0;
    if (pausing && ![...this.running].some(({ quick }) => !quick)) return undefined;
    const quickOnly = pausing || thread === this.reserved;
    const at = quickOnly ? this.waiting.findIndex(({ quick }) => quick) : 0;
    return at === -1 ? undefined : this.waiting.splice(at, 1)[0];
  }

  private start(entry: Entry, thread: ReadThreadHandle): void {
    entry.thread = thread;
    this.running.add(entry);
    thread.run(entry.job, (outcome) => {
      this.running.delete(entry);
      this.learn(entry.kind, outcome.milliseconds);
      this.settle(entry, outcome);
      this.dispatch();
    });
  }

  private learn(kind: string, milliseconds: number): void {
    if (milliseconds > QUICK_MS) {
      this.quickKinds.delete(kind);
      return;
    }
    if (this.quickKinds.size >= MOST_KINDS) this.quickKinds.clear();
    this.quickKinds.add(kind);
  }

  private settle(entry: Entry, outcome: ReadOutcome): void {
    if (entry.over) return;
    entry.over = true;
    if ('error' in outcome) entry.reject(translateError(outcome.error));
    else entry.resolve(outcome.result);
  }
}

function storeClosed(): Error {
  return new Error('the store is closed');
}
