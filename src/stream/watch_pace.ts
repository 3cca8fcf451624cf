import type { Drain } from './drain.ts';
import type { AppSettings } from './settings.ts';

/**
 * When a watcher looks again: at a hint and at every poll, but not sooner than `watchMs` after what it was told last
 * (M5); and when it is time to say that it is still there.
 */
export class WatchPace {
  readonly #watchMs: number;
  readonly #markPolls: number;
  readonly #poll: NodeJS.Timeout;
  #rest: NodeJS.Timeout | undefined;
  #hinted = false;
  #rested = false;
  #over = false;
  #quietPolls = 0;
  #wake: (() => void) | undefined;
  #unheed: () => void = () => undefined;

  constructor({ watchMs, pollMs, progressMs }: Pick<AppSettings, 'watchMs' | 'pollMs' | 'progressMs'>) {
    this.#watchMs = watchMs;
    this.#markPolls = Math.max(1, Math.floor(progressMs / pollMs) - 1);
    this.#poll = setInterval(() => {
      this.#quietPolls += 1;
      this.hint();
    }, pollMs).unref();
  }

  /** Takes the hints of a subscription, and ends when the server drains or the signal is aborted. Until `stop`. */
  heed(subscribe: (listener: () => void) => () => void, drain: Drain, signal: AbortSignal): void {
    const end = () => this.end();
    const unsubscribe = subscribe(() => this.hint());
    const stopWaitingForDrain = drain.onBegin(end);
    signal.addEventListener('abort', end, { once: true });
    if (signal.aborted) this.end();
    this.#unheed = () => {
      signal.removeEventListener('abort', end);
      stopWaitingForDrain();
      unsubscribe();
    };
  }

  /** Something may have changed. */
  hint(): void {
    this.#hinted = true;
    this.#wakeIfDue();
  }

  /** A look begins: what is hinted from here on needs another one. */
  look(): void {
    this.#hinted = false;
  }

  /** Nothing was told for so long that a mark is due. */
  get markDue(): boolean {
    return this.#quietPolls >= this.#markPolls;
  }

  told(): void {
    this.#quietPolls = 0;
  }

  /** Resolves when it is time for another look. One waits at a time. */
  next(): Promise<void> {
    this.#rested = false;
    clearTimeout(this.#rest);
    this.#rest = setTimeout(() => {
      this.#rested = true;
      this.#wakeIfDue();
    }, this.#watchMs).unref();
    return new Promise((resolve) => {
      this.#wake = resolve;
      this.#wakeIfDue();
    });
  }

  /** There is no more waiting. */
  get ended(): boolean {
    return this.#over;
  }

  end(): void {
    this.#over = true;
    this.#wakeIfDue();
  }

  stop(): void {
    this.#unheed();
    this.end();
    clearInterval(this.#poll);
    clearTimeout(this.#rest);
  }

  #wakeIfDue(): void {
    if (!this.#over && !(this.#hinted && this.#rested)) return;
    const wake = this.#wake;
    this.#wake = undefined;
    wake?.();
  }
}
