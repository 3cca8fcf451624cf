import { Worker } from 'node:worker_threads';
import type { PoolLoad } from '../contract/load.ts';
import type { CallScope } from '../contract/store.ts';
import { type Identity, identityOf } from '../file_guard/identity.ts';
import { ReadLanes, type Timed } from '../sql/kit/reading/lanes.ts';
import type { StatementTimes } from '../sql/kit/statement_times.ts';
import type { RangeExtrema, SeriesRange } from '../sql/records/metric/points.ts';
import { translateError } from './errors.ts';

/**
 * Reads an SQLite file on threads, because a statement of `node:sqlite` blocks its thread. Each thread is a lane, one
 * of them for quick reads only. Threads start on demand.
 */
export class ReadThreads {
  readonly #lanes: ReadLanes;
  readonly #threads: readonly ReadThreadHandle[];
  readonly #times: StatementTimes | undefined;

  /** `threads` is the number of long jobs that run at a time. */
  constructor(path: string, threads: number, { quickMs, times }: { quickMs?: number; times?: StatementTimes } = {}) {
    this.#times = times;
    this.#lanes = new ReadLanes({ long: threads, quick: 1, quickMs });
    this.#threads = Array.from({ length: threads + 1 }, () => new ReadThreadHandle(path));
  }

  /**
   * When the call ends, rejects with the reason of its signal: a waiting job at once, a running job when its statement
   * has ended.
   */
  async run<Job extends ReadJob>(job: Job, call: CallScope | undefined): Promise<ReadResult<Job>> {
    try {
      const kind = kindOf(job);
      return (await this.#lanes.run(kind, call, async (lane) => {
        const timed = await this.#threads[lane]!.run(job, call?.signal);
        this.#times?.note(kind, timed.milliseconds);
        return timed;
      })) as ReadResult<Job>;
    } catch (error) {
      throw translateError(error);
    }
  }

  get load(): PoolLoad {
    return this.#lanes.load;
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
export function kindOf(job: ReadJob): string {
  if (job.kind === 'extrema') return job.kind;
  return job.kind === 'snapshot' ? job.statements.map(({ text }) => text).join(';') : job.text;
}

/** The compiled package contains JavaScript. */
const PROGRAM = new URL(`./read_thread${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url);

const MOST_ID = 2 ** 31 - 1;

/**
 * A read thread, as seen from the thread of the server. It starts with its first job, and restarts with the next job
 * after a crash.
 */
export class ReadThreadHandle {
  readonly #path: string;
  readonly #identity: Identity;
  readonly #copiesLog: boolean;
  readonly #cancelled = new SharedArrayBuffer(4);
  #worker: Worker | undefined;
  #lastId = 0;
  #running: PromiseWithResolvers<Timed<unknown[]>> | undefined;

  /** The file must exist. `copiesLog`: the connection can run COPY_LOG, which the others cannot. */
  constructor(path: string, { copiesLog = false } = {}) {
    this.#path = path;
    this.#identity = identityOf(path);
    this.#copiesLog = copiesLog;
  }

  /**
   * Runs one job at a time. If the signal is aborted, rejects with the signal's reason when the statement has ended.
   */
  async run(job: ReadJob, signal?: AbortSignal): Promise<Timed<unknown[]>> {
    signal?.throwIfAborted();
    const cancel = () => this.#cancel();
    signal?.addEventListener('abort', cancel);
    try {
      return await this.#start(job);
    } catch (error) {
      signal?.throwIfAborted();
      throw error;
    } finally {
      signal?.removeEventListener('abort', cancel);
    }
  }

  /** Ends the thread. The running job rejects with this error. */
  async stop(reason: Error): Promise<void> {
    this.#running?.reject(reason);
    this.#cancel();
    await this.#worker?.terminate();
  }

  #start(job: ReadJob): Promise<Timed<unknown[]>> {
    this.#lastId = this.#lastId === MOST_ID ? 1 : this.#lastId + 1;
    this.#running = Promise.withResolvers();
    this.#worker ??= this.#startThread();
    this.#worker.ref(); // A job keeps the process alive; an idle thread does not.
    const request: ReadRequest = { id: this.#lastId, job };
    this.#worker.postMessage(request);
    return this.#running.promise;
  }

  #cancel(): void {
    Atomics.store(new Int32Array(this.#cancelled), 0, this.#lastId);
  }

  #startThread(): Worker {
    const workerData: ReadThreadOptions = {
      path: this.#path,
      identity: this.#identity,
      copiesLog: this.#copiesLog,
      cancelled: this.#cancelled,
    };
    const worker = new Worker(PROGRAM, { workerData, name: this.#copiesLog ? 'anabranch log' : 'anabranch read' });
    let fault = new Error('the read thread ended');
    worker.on('message', ({ milliseconds, result = [], columns, error }: ReadReply) => {
      worker.unref();
      const value = columns === undefined ? result : objectsOf(columns, result as unknown[][]);
      if (error === undefined) this.#running?.resolve({ value, milliseconds });
      else this.#running?.reject(errorOf(error));
    });
    worker.on('error', (error: Error) => {
      fault = error;
    });
    worker.once('exit', () => {
      this.#worker = undefined;
      this.#running?.reject(fault);
    });
    return worker;
  }
}

/** Makes objects of rows that came as arrays. */
export function objectsOf(columns: readonly string[], rows: readonly (readonly unknown[])[]): object[] {
  return rows.map((values) => {
    const row: Record<string, unknown> = {};
    for (let i = 0; i < columns.length; i += 1) row[columns[i]!] = values[i];
    return row;
  });
}

function errorOf({ message, stack, code, errcode }: ReadFailure): Error {
  return Object.assign(new Error(message), { stack, code, errcode });
}

/** Copies the log into the file, as far as no read needs older rows. Waits for neither reads nor commits. */
export const COPY_LOG: StatementJob = { kind: 'arrays', text: 'pragma wal_checkpoint(passive)', parameters: [] };

/** What a read thread can be asked for. Everything in it is copied from thread to thread. */
export type ReadJob = StatementJob | SnapshotJob | ExtremaJob;

/** Reads the rows of one statement: as objects with bigints, or as arrays with integers as numbers. */
export interface StatementJob {
  readonly kind: 'objects' | 'arrays';
  readonly text: string;
  readonly parameters: readonly unknown[];
}

/** The rows of several statements, as objects with bigints. All statements run in one read transaction. */
export interface SnapshotJob {
  readonly kind: 'snapshot';
  readonly statements: readonly Pick<StatementJob, 'text' | 'parameters'>[];
}

/** The extrema of some ranges of a metric series, which take several statements each. */
export interface ExtremaJob {
  readonly kind: 'extrema';
  readonly series: bigint;
  readonly ranges: readonly SeriesRange[];
}

export type ReadResult<Job extends ReadJob> = Job extends ExtremaJob
  ? RangeExtrema[]
  : Job extends SnapshotJob
    ? ReadRows[]
    : unknown[];

/** Rows as arrays, with the keys for objects. */
export interface ReadRows {
  readonly columns: readonly string[];
  readonly rows: readonly (readonly unknown[])[];
}

/** Message to the thread. Writing the id into the shared `cancelled` cell cancels the job. */
export interface ReadRequest {
  readonly id: number;
  readonly job: ReadJob;
}

/** Answer of the thread. */
export interface ReadReply {
  /** Run time of the job on the thread. */
  readonly milliseconds: number;
  /** Rows as arrays, even if objects are requested, because their keys would be copied with every row. */
  readonly result?: unknown[];
  /** Keys of the objects, if objects are requested. */
  readonly columns?: readonly string[];
  readonly error?: ReadFailure;
}

/** Fields of an error that can be copied between threads. */
export interface ReadFailure {
  readonly message: string;
  readonly stack: string | undefined;
  readonly code: unknown;
  readonly errcode: unknown;
}

export interface ReadThreadOptions {
  readonly path: string;
  /** Which file the path must lead to. */
  readonly identity: Identity;
  readonly copiesLog: boolean;
  /** One Int32 cell with the id of the job to cancel. */
  readonly cancelled: SharedArrayBuffer;
}
