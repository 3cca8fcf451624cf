import { ReadLanes } from '../sql/kit/reading/lanes.ts';
import { translateError } from './errors.ts';
import type { ReadJob, ReadResult } from './read_job.ts';
import { ReadThreadHandle } from './read_thread_handle.ts';

/**
 * Reads an SQLite file on threads, because a statement of `node:sqlite` blocks its thread. Each thread is a lane, one
 * of them for quick reads only. Threads start on demand.
 */
export class ReadThreads {
  readonly #lanes: ReadLanes;
  readonly #threads: readonly ReadThreadHandle[];

  /** `threads` is the number of long jobs that run at a time. */
  constructor(path: string, threads: number, quickMs?: number) {
    this.#lanes = new ReadLanes({ long: threads, quick: 1, quickMs });
    this.#threads = Array.from({ length: threads + 1 }, () => new ReadThreadHandle(path));
  }

  /**
   * When the signal is aborted, rejects with its reason: a waiting job at once, a running job when its statement has
   * ended.
   */
  async run<Job extends ReadJob>(job: Job, signal: AbortSignal | undefined): Promise<ReadResult<Job>> {
    try {
      return (await this.#lanes.run(kindOf(job), signal, (lane) =>
        this.#threads[lane]!.run(job, signal),
      )) as ReadResult<Job>;
    } catch (error) {
      throw translateError(error);
    }
  }

  /** Resolves when no job runs (see `ReadLanes.pause`). */
  pause(): Promise<() => void> {
    return this.#lanes.pause();
  }

  /** Ends all jobs with an error. Idempotent. */
  async close(): Promise<void> {
    const closed = new Error('the store is closed');
    this.#lanes.close(closed);
    await Promise.all(this.#threads.map((thread) => thread.stop(closed)));
  }
}

/** Jobs of one kind take about as long as each other. */
function kindOf(job: ReadJob): string {
  if (job.kind === 'extrema') return job.kind;
  return job.kind === 'snapshot' ? job.statements.map(({ text }) => text).join(';') : job.text;
}
