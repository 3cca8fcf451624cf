import type { Drain } from './drain.ts';
import type { AppSettings } from './settings.ts';

/**
 * Returns the number of polls without a message after which a follower or watcher sends a sign of life. One less
 * than the polls that fit into `progressMs`, so that there is time for the read that follows the last poll.
 */
export function pollsUntilProgress({ pollMs, progressMs }: Pick<AppSettings, 'pollMs' | 'progressMs'>): number {
  return Math.max(1, Math.floor(progressMs / pollMs) - 1);
}

/**
 * Decides when a watcher looks at the database again (M5): after a hint or a poll, but not within `watchMs` of the
 * previous look. Also decides when a watcher that has nothing to send sends a sign of life.
 */
export class LookSchedule {
  readonly #watchMs: number;
  readonly #progressPolls: number;
  readonly #poll: NodeJS.Timeout;
  #rest: NodeJS.Timeout | undefined;
  #hinted = false;
  #rested = false;
  #ended = false;
  /** Polls since the last message. */
  #quietPolls = 0;
  #wake: (() => void) | undefined;
  #unsubscribe: () => void = () => undefined;

  constructor({ watchMs, pollMs, progressMs }: Pick<AppSettings, 'watchMs' | 'pollMs' | 'progressMs'>) {
    this.#watchMs = watchMs;
    this.#progressPolls = pollsUntilProgress({ pollMs, progressMs });
    this.#poll = setInterval(() => {
      this.#quietPolls += 1;
      this.hint();
    }, pollMs).unref();
  }

  /** Subscribes to hints. Ends when the server drains or the signal is aborted. */
  listen(subscribe: (listener: () => void) => () => void, drain: Drain, signal: AbortSignal): void {
    const end = () => this.end();
    const unsubscribe = subscribe(() => this.hint());
    const unsubscribeDrain = drain.onBegin(end);
    signal.addEventListener('abort', end, { once: true });
    if (signal.aborted) this.end();
    this.#unsubscribe = () => {
      signal.removeEventListener('abort', end);
      unsubscribeDrain();
      unsubscribe();
    };
  }

  /** Tells that something may have changed. */
  hint(): void {
    this.#hinted = true;
    this.#wakeIfDue();
  }

  /** Must be called before each look: later hints require another look. */
  beginLook(): void {
    this.#hinted = false;
  }

  /** Whether nothing was sent for so long that a sign of life is due. */
  get progressDue(): boolean {
    return this.#quietPolls >= this.#progressPolls;
  }

  /** Must be called for each message. */
  sent(): void {
    this.#quietPolls = 0;
  }

  /** Resolves when the next look is due, or when the schedule has ended. Only one wait at a time. */
  nextLook(): Promise<void> {
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

  get ended(): boolean {
    return this.#ended;
  }

  /** Ends the schedule: current and later waits resolve at once. */
  end(): void {
    this.#ended = true;
    this.#wakeIfDue();
  }

  /** Ends, and releases timers and subscriptions. */
  stop(): void {
    this.#unsubscribe();
    this.end();
    clearInterval(this.#poll);
    clearTimeout(this.#rest);
  }

  #wakeIfDue(): void {
    if (!this.#ended && !(this.#hinted && this.#rested)) return;
    const wake = this.#wake;
    this.#wake = undefined;
    wake?.();
  }
}
