import { Worker } from 'node:worker_threads';
import type { ReadFailure, ReadJob, ReadReply, ReadRequest, ReadThreadOptions } from './read_job.ts';

/** How a job ended on its thread. */
export type ReadOutcome =
  | { readonly milliseconds: number; readonly result: unknown[] }
  | { readonly milliseconds: number; readonly error: unknown };

/** The compiled package holds JavaScript. */
const PROGRAM = new URL(`./read_thread${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url);

const MOST_ID = 2 ** 31 - 1;

/** One read thread, seen from the serving thread. It starts with its first job, and again with the next one if it dies. */
export class ReadThreadHandle {
  private readonly path: string;
  private readonly cancelled = new SharedArrayBuffer(4);
  private worker: Worker | undefined;
  private lastId = 0;
  private onEnd: ((outcome: ReadOutcome) => void) | undefined;

  constructor(path: string) {
    this.path = path;
  }

  get busy(): boolean {
    return this.onEnd !== undefined;
  }

  /** Runs one job at a time. `onEnd` is called once, also if the thread dies. */
  run(job: ReadJob, onEnd: (outcome: ReadOutcome) => void): void {
    this.lastId = this.lastId === MOST_ID ? 1 : this.lastId + 1;
    this.onEnd = onEnd;
    this.worker ??= this.start();
    this.worker.ref(); // an idle thread does not keep the process alive, a job does
    const request: ReadRequest = { id: this.lastId, job };
    this.worker.postMessage(request);
  }

  /** Ends the running job with an error, within some thousand rows. */
  cancel(): void {
    Atomics.store(new Int32Array(this.cancelled), 0, this.lastId);
  }

  async stop(): Promise<void> {
    const { worker } = this;
    this.cancel();
    await worker?.terminate();
  }

  private start(): Worker {
    const workerData: ReadThreadOptions = { path: this.path, cancelled: this.cancelled };
    const worker = new Worker(PROGRAM, { workerData, name: 'anabranch read' });
    let fault: Error | undefined;
    worker.on('message', (reply: ReadReply) => this.end(outcomeOf(reply)));
    worker.on('error', (error: Error) => {
      fault = error;
    });
    worker.once('exit', () => {
      this.worker = undefined;
      this.end({ milliseconds: 0, error: fault ?? new Error('the read thread ended') });
    });
    return worker;
  }

  private end(outcome: ReadOutcome): void {
    const { onEnd } = this;
    this.onEnd = undefined;
    this.worker?.unref();
    onEnd?.(outcome);
  }
}

function outcomeOf({ milliseconds, result, error }: ReadReply): ReadOutcome {
  return error === undefined ? { milliseconds, result: result ?? [] } : { milliseconds, error: errorOf(error) };
}

function errorOf({ message, stack, code, errcode }: ReadFailure): Error {
  return Object.assign(new Error(message), { stack, code, errcode });
}
