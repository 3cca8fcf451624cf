import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { FoundText } from '../../../../domain/step_search.ts';
import { SlotQueue } from '../../../../queue/slot_queue.ts';
import type { SearchJob, SearchReply } from './search_job.ts';

/** `.ts` in a checkout, `.js` in the package. */
const PROGRAM = new URL(`./search_thread${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url);

/** The thread ends after this time without work, in milliseconds. */
const IDLE_MS = 30_000;

/** Searches segments on a thread, one job at a time, namespaces in turn. The thread starts with the first job. */
export class StepSearcher {
  #worker: Worker | undefined;
  #idleTimer: NodeJS.Timeout | undefined;
  readonly #turns = new SlotQueue(1);
  #isClosed = false;

  search(namespace: string, job: SearchJob): Promise<readonly FoundText[]> {
    return this.#turns.within(namespace, () => this.#run(job));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#idleTimer);
    await this.#worker?.terminate();
  }

  async #run(job: SearchJob): Promise<readonly FoundText[]> {
    if (this.#isClosed) throw new Error('the store is closed');
    clearTimeout(this.#idleTimer);
    this.#worker ??= this.#start();
    const worker = this.#worker;
    worker.ref(); // A search keeps the process alive; an idle thread does not.
    const ended = new AbortController();
    worker.once('exit', () => ended.abort(new Error('the thread of searches has ended')));
    try {
      worker.postMessage(job);
      const [reply] = (await once(worker, 'message', { signal: ended.signal })) as [SearchReply];
      if ('error' in reply) throw reply.error;
      return reply.found;
    } finally {
      worker.unref();
      worker.removeAllListeners('exit');
      this.#idleTimer = setTimeout(() => this.#end(worker), IDLE_MS).unref();
    }
  }

  #start(): Worker {
    const worker = new Worker(PROGRAM, { name: 'anabranch search' });
    // Without a listener, the error of an idle thread would end the process.
    worker.on('error', () => this.#end(worker));
    return worker;
  }

  #end(worker: Worker): void {
    if (this.#worker === worker) this.#worker = undefined;
    void worker.terminate();
  }
}
