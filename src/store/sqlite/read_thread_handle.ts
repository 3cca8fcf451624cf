import { Worker } from 'node:worker_threads';
import type { Timed } from '../sql/kit/reading/lanes.ts';
import type { ReadFailure, ReadJob, ReadReply, ReadRequest, ReadThreadOptions } from './read_job.ts';

/** The compiled package contains JavaScript. */
const PROGRAM = new URL(`./read_thread${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url);

const MOST_ID = 2 ** 31 - 1;

/**
 * A read thread, as seen from the thread of the server. It starts with its first job, and restarts with the next job
 * after a crash.
 */
export class ReadThreadHandle {
  readonly #path: string;
  readonly #cancelled = new SharedArrayBuffer(4);
  #worker: Worker | undefined;
  #lastId = 0;
  #running: PromiseWithResolvers<Timed<unknown[]>> | undefined;

  constructor(path: string) {
    this.#path = path;
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
    const workerData: ReadThreadOptions = { path: this.#path, cancelled: this.#cancelled };
    const worker = new Worker(PROGRAM, { workerData, name: 'anabranch read' });
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
