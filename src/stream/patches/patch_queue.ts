import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { PatchResult } from '../../domain/json_patch.ts';
import { LIMITS } from '../../domain/limits.ts';
import { serverDraining } from '../drain.ts';

/** `.ts` in a checkout, `.js` in the package. */
const PROGRAM = new URL(`./patch_thread${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url);

/** Bounds the memory of the thread. The most complex documents within LIMITS take half of it. */
const RESOURCE_LIMITS = { maxOldGenerationSizeMb: 512, maxYoungGenerationSizeMb: 64 };

/** The thread ends after this time without work, in milliseconds. */
const IDLE_MS = 30_000;

/** The bytes of two states. The thread reads them in place. */
export type StatePair = readonly [SharedArrayBuffer, SharedArrayBuffer];

/**
 * S7: computes the JSON Patches of all calls, one at a time, on a thread that starts with the first of them. A patch
 * that takes too long or too much memory ends the thread; the next patch starts another one.
 */
export class PatchQueue {
  readonly #patchMs: number;
  readonly #waiting: PromiseWithResolvers<void>[] = [];
  readonly #closing = new AbortController();
  #isBusy = false;
  #worker: Worker | undefined;
  #idleTimer: NodeJS.Timeout | undefined;

  constructor(patchMs: number) {
    this.#patchMs = patchMs;
  }

  /**
   * Returns the patch. Calls `load` when it is its turn, so that waiting calls hold no states. Errors: those of `load`.
   */
  async patch(load: () => Promise<StatePair>, signal: AbortSignal): Promise<PatchResult> {
    signal.throwIfAborted();
    if (!(await this.#enter(signal))) return { noPatch: 'BUSY' };
    try {
      return await this.#run(await load(), signal);
    } finally {
      this.#leave();
    }
  }

  /** Ends the thread. The running patch fails with SERVER_DRAINING. */
  async close(): Promise<void> {
    this.#closing.abort(serverDraining());
    clearTimeout(this.#idleTimer);
    await this.#worker?.terminate();
  }

  /** Waits until no other call computes a patch. Returns false if too many others wait. */
  async #enter(signal: AbortSignal): Promise<boolean> {
    if (this.#isBusy && this.#waiting.length >= LIMITS.waitingPatches) return false;
    if (!this.#isBusy) {
      this.#isBusy = true;
      return true;
    }
    const turn = Promise.withResolvers<void>();
    const giveUp = () => {
      const at = this.#waiting.indexOf(turn);
      if (at >= 0) this.#waiting.splice(at, 1);
      turn.reject(signal.reason);
    };
    this.#waiting.push(turn);
    signal.addEventListener('abort', giveUp);
    await turn.promise.finally(() => signal.removeEventListener('abort', giveUp));
    return true;
  }

  #leave(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#isBusy = false;
    else next.resolve();
  }

  async #run(states: StatePair, signal: AbortSignal): Promise<PatchResult> {
    const timeout = AbortSignal.timeout(this.#patchMs);
    const ends = AbortSignal.any([signal, timeout, this.#closing.signal]);
    ends.throwIfAborted();
    clearTimeout(this.#idleTimer);
    this.#worker ??= this.#start();
    const worker = this.#worker;
    worker.ref(); // A patch keeps the process alive; an idle thread does not.
    try {
      worker.postMessage(states);
      const [result] = (await once(worker, 'message', { signal: ends })) as [PatchResult];
      this.#idleTimer = setTimeout(() => this.#end(worker), IDLE_MS).unref();
      return result;
    } catch (error) {
      this.#end(worker);
      if (timeout.aborted || isOutOfMemory(error)) return { noPatch: 'TOO_COMPLEX' };
      ends.throwIfAborted();
      throw error;
    } finally {
      worker.unref();
    }
  }

  #start(): Worker {
    const worker = new Worker(PROGRAM, { name: 'anabranch patch', resourceLimits: RESOURCE_LIMITS });
    // Without a listener, the error of an idle thread would end the process.
    worker.on('error', () => this.#end(worker));
    return worker;
  }

  #end(worker: Worker): void {
    if (this.#worker === worker) this.#worker = undefined;
    void worker.terminate();
  }
}

function isOutOfMemory(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ERR_WORKER_OUT_OF_MEMORY';
}
