import { Worker } from 'node:worker_threads';
import { AnabranchError } from '../../domain/errors.ts';
import type { AppendBatch, AppendOutcome } from '../contract/append.ts';
import { arrivedError, type CarriedError } from './carried_error.ts';
import type { LastTime } from './connection.ts';
import { type PackedBatches, type PackedOutcomes, unpackOutcomes } from './packing.ts';

/** What the thread is started with. */
export interface AppendWorkerData {
  readonly path: string;
  /** The last commit time that was given, shared by all writers of the file. */
  readonly clock: LastTime;
}

export type AppendRequest = PackedBatches | 'close';

export type AppendAnswer =
  | 'ready'
  | { readonly outcomes: PackedOutcomes; readonly changed: readonly bigint[] }
  | { readonly error: CarriedError };

export interface Committed {
  readonly outcomes: AppendOutcome[];
  /** Trajectories that grew or were sealed. */
  readonly changed: readonly bigint[];
}

type Wait = PromiseWithResolvers<Committed>;

/** A thread with a connection of its own that commits groups of appends, one at a time. It does not keep the process alive. */
export class AppendThread {
  private readonly worker: Worker;
  private waiting: Wait | undefined;
  private state: 'starting' | 'ready' | 'gone' = 'starting';
  private readonly onLost: (error: unknown) => void;

  constructor(data: AppendWorkerData, onLost: (error: unknown) => void) {
    this.onLost = onLost;
    // Compiled, this file and the thread's stand side by side as they do here.
    const file = import.meta.url.endsWith('.ts') ? './append_worker.ts' : './append_worker.js';
    this.worker = new Worker(new URL(file, import.meta.url), { workerData: data });
    this.worker.unref();
    this.worker.on('message', (answer: AppendAnswer) => this.answered(answer));
    this.worker.on('error', (error: unknown) => this.lost(error));
    this.worker.on('exit', () => this.lost(new Error('the thread ended')));
  }

  /** Not while it starts, and not once it has failed: whoever asks then commits in its own thread. */
  get ready(): boolean {
    return this.state === 'ready';
  }

  commit(packed: PackedBatches): Promise<Committed> {
    const wait = Promise.withResolvers<Committed>();
    this.waiting = wait;
    this.worker.postMessage(packed, [packed.bytes.buffer, packed.numbers.buffer, packed.lengths.buffer]);
    return wait.promise;
  }

  /** After the last commit. */
  async close(): Promise<void> {
    if (this.state === 'gone') return;
    this.state = 'gone';
    const exited = new Promise((resolve) => this.worker.once('exit', resolve));
    this.worker.ref();
    this.worker.postMessage('close' satisfies AppendRequest);
    await exited;
  }

  private answered(answer: AppendAnswer): void {
    if (answer === 'ready') {
      if (this.state === 'starting') this.state = 'ready';
      return;
    }
    const wait = this.waiting;
    this.waiting = undefined;
    if ('error' in answer) wait?.reject(arrivedError(answer.error));
    else wait?.resolve({ outcomes: unpackOutcomes(answer.outcomes), changed: answer.changed });
  }

  private lost(cause: unknown): void {
    if (this.state !== 'gone') this.onLost(cause);
    this.state = 'gone';
    this.waiting?.reject(
      new AnabranchError(
        'DATABASE_UNAVAILABLE',
        'The thread that commits has failed. What was not acked may or may not be stored: send it again, which is safe.',
        { cause },
      ),
    );
    this.waiting = undefined;
  }
}

/** Below this many steps a group, the way to the thread and back costs more than it spares. */
const WORTH_A_THREAD = 12;

/** Whether groups are large enough for the thread, by what they were lately: switching costs each connection what it has cached of the file. */
export class GroupSizes {
  private recent = 0;

  /** Takes the size of the next group; true: to the thread with it. */
  isForThread(batches: readonly AppendBatch[]): boolean {
    const steps = batches.reduce((sum, batch) => sum + batch.steps.length, 0);
    this.recent += (steps - this.recent) / 8;
    return this.recent >= WORTH_A_THREAD;
  }
}
