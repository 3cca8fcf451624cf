import type { ChangeHub } from './change_hub.ts';
import type { Drain } from './drain.ts';
import type { AppSettings } from './settings.ts';

/**
 * Returns the number of ticks without a message after which a follower or watcher sends a sign of life. One less than
 * the ticks that fit into `progressMs`, so that there is time for a read that follows the last tick.
 */
export function ticksUntilProgress({ pollMs, progressMs }: Pick<AppSettings, 'pollMs' | 'progressMs'>): number {
  return Math.max(1, Math.floor(progressMs / pollMs) - 1);
}

/**
 * Decides when a watcher looks at the database again (M5): after a hint, but not within `watchMs` of the previous look.
 * Also decides when a watcher that has nothing to send sends a sign of life.
 */
export class LookSchedule {
  readonly #watchMs: number;
  readonly #progressTicks: number;
  readonly #stopTicks: () => void;
  #rest: NodeJS.Timeout | undefined;
  #hinted = false;
  #rested = true;
  #looked = false;
  #ended = false;
  /** Ticks since the last message. */
  #quietTicks = 0;
  #wake: ((isTick: boolean) => void) | undefined;
  #unsubscribe: () => void = () => undefined;

  constructor(
    changes: Pick<ChangeHub, 'onTick'>,
    { watchMs, pollMs, progressMs }: Pick<AppSettings, 'watchMs' | 'pollMs' | 'progressMs'>,
  ) {
    this.#watchMs = watchMs;
    this.#progressTicks = ticksUntilProgress({ pollMs, progressMs });
    this.#stopTicks = changes.onTick(() => {
      this.#quietTicks += 1;
      this.#wake?.(true);
    });
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
    this.#looked = true;
  }

  /** Whether nothing was sent for so long that a sign of life is due. */
  get progressDue(): boolean {
    return this.#quietTicks >= this.#progressTicks;
  }

  /** Must be called for each message. */
  sent(): void {
    this.#quietTicks = 0;
  }

  /** Resolves when the next look is due, or when the schedule has ended. Only one wait at a time. */
  async nextLook(): Promise<void> {
    while (!(await this.nextLookOrTick()));
  }

  /** Like `nextLook`, but also resolves at ticks, which may be times for a sign of life: with false. */
  nextLookOrTick(): Promise<boolean> {
    if (this.#looked) this.#beginRest();
    return new Promise((resolve) => {
      this.#wake = (isTick) => {
        this.#wake = undefined;
        resolve(!isTick);
      };
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
    this.#stopTicks();
    this.end();
    clearTimeout(this.#rest);
  }

  #beginRest(): void {
    this.#looked = false;
    this.#rested = false;
    clearTimeout(this.#rest);
    this.#rest = setTimeout(() => {
      this.#rested = true;
      this.#wakeIfDue();
    }, this.#watchMs).unref();
  }

  #wakeIfDue(): void {
    if (this.#ended || (this.#hinted && this.#rested)) this.#wake?.(false);
  }
}
