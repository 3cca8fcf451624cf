import { ReadLanes } from '../sql/read_lanes.ts';
import { translateError } from './errors.ts';
import type { ReadJob, ReadResult } from './read_job.ts';
import { ReadThreadHandle } from './read_thread_handle.ts';

/** Reads a file of SQLite on threads, a lane each, since a statement of `node:sqlite` blocks the thread that runs it. Threads start when needed. */
export class ReadThreads {
  private readonly lanes: ReadLanes;
  private readonly threads: readonly ReadThreadHandle[];

  /** `threads`: how many jobs that may take long run at a time. */
  constructor(path: string, threads: number, quickMs?: number) {
    this.lanes = new ReadLanes(threads, quickMs);
    this.threads = Array.from({ length: threads + 1 }, () => new ReadThreadHandle(path));
  }

  /** When the signal is aborted it rejects with the signal's reason at once, and the job ends soon after. */
  async run<Job extends ReadJob>(job: Job, signal: AbortSignal | undefined): Promise<ReadResult<Job>> {
    const kind = job.kind === 'stretches' ? job.kind : job.text;
    try {
      return (await this.lanes.run(kind, signal, (lane) => this.threads[lane]!.run(job, signal))) as ReadResult<Job>;
    } catch (error) {
      throw translateError(error);
    }
  }

  /** Resolves at a moment when no job runs, as `ReadLanes.pause` says. */
  pause(): Promise<() => void> {
    return this.lanes.pause();
  }

  /** Ends all jobs with an error. Idempotent. */
  async close(): Promise<void> {
    const closed = new Error('the store is closed');
    this.lanes.close(closed);
    await Promise.all(this.threads.map((thread) => thread.stop(closed)));
  }
}
