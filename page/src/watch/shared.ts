import { accessHeaders } from '../access.ts';
import { type WatchEvent, type WatchSource, WatchStream } from './stream.ts';
import type { FromWorker, ToWorker } from './worker.ts';

/**
 * Watches through the worker that all tabs of this browser share: over plain HTTP, a browser opens at most six
 * connections to a server for all tabs together. A browser without such workers has one stream per visible tab.
 */
export function connectSource(): WatchSource {
  return typeof SharedWorker === 'undefined' ? new WatchStream(location.origin, accessHeaders()) : new SharedSource();
}

interface Watch {
  readonly subject: Uint8Array;
  readonly listener: (event: WatchEvent) => void;
}

class SharedSource implements WatchSource {
  readonly #watches = new Map<number, Watch>();
  readonly #port: MessagePort;
  readonly #headers = accessHeaders();
  #last = 0;
  /** Replaces a worker that could not be loaded. */
  #own: WatchStream | undefined;

  constructor() {
    const worker = new SharedWorker(new URL('./worker.ts', import.meta.url), { type: 'module', name: 'anabranch' });
    this.#port = worker.port;
    this.#port.onmessage = ({ data: { id, event } }: MessageEvent<FromWorker>) =>
      this.#watches.get(id)?.listener(event);
    worker.onerror = () => this.#replace();
    addEventListener('pagehide', () => this.#send('leave'));
    addEventListener('pageshow', ({ persisted }) => {
      if (persisted) for (const [id, { subject }] of this.#watches) this.#send({ id, subject, headers: this.#headers });
    });
  }

  add(subject: Uint8Array, listener: (event: WatchEvent) => void): () => void {
    if (this.#own !== undefined) return this.#own.add(subject, listener);
    this.#last += 1;
    const id = this.#last;
    this.#watches.set(id, { subject, listener });
    this.#send({ id, subject, headers: this.#headers });
    return () => {
      if (this.#watches.delete(id)) this.#send({ id });
    };
  }

  #send(message: ToWorker): void {
    this.#port.postMessage(message);
  }

  #replace(): void {
    if (this.#own !== undefined) return;
    const own = new WatchStream(location.origin, this.#headers);
    this.#own = own;
    for (const [id, { subject, listener }] of this.#watches) {
      const remove = own.add(subject, (event) => (this.#watches.has(id) ? listener(event) : remove()));
    }
  }
}
