import { Code, ConnectError } from '@connectrpc/connect';

/**
 * Reports when the server owes an answer and sends nothing. It uses one timer per period instead of one per message:
 * the timer checks when the last message arrived and waits for the rest.
 */
export class Silence {
  readonly #limitMs: number;
  readonly #report: (error: Error) => void;
  #since: number | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(limitMs: number, report: (error: Error) => void) {
    this.#limitMs = limitMs;
    this.#report = report;
  }

  /** Starts the wait for an answer, unless it has started. */
  expect(): void {
    if (this.#since === undefined) this.restart();
  }

  /** Records a message and waits for another one. */
  restart(): void {
    if (!Number.isFinite(this.#limitMs)) return;
    this.#since = performance.now();
    this.#timer ??= this.#arm(this.#limitMs);
  }

  /** Pauses the wait: no answer is owed. The timer keeps running, in case the wait starts again soon. */
  pause(): void {
    this.#since = undefined;
  }

  stop(): void {
    this.#since = undefined;
    clearTimeout(this.#timer);
  }

  #arm(ms: number): ReturnType<typeof setTimeout> {
    const due = performance.now() + ms;
    // Answers may be unread when the timer fires. Node reads sockets between two rounds of timers, so the check waits
    // for the next round.
    const timer = setTimeout(() => setTimeout(() => this.#check(due)), ms);
    unref(timer);
    return timer;
  }

  #check(due: number): void {
    this.#timer = undefined;
    if (this.#since === undefined) return;
    const now = performance.now();
    // The timer is much too late, so this process was suspended. The server gets the whole period again.
    if (now - due > this.#limitMs / 2) this.#since = now;
    const left = this.#since + this.#limitMs - now;
    if (left > 0) {
      this.#timer = this.#arm(left);
      return;
    }
    this.#since = undefined;
    const message = `the server sent nothing for ${this.#limitMs / 1000} s`;
    this.#report(new ConnectError(message, Code.Unavailable));
  }
}

/**
 * Lets the process end although the timer runs. Node's timers keep the process alive, those of browsers do not. While
 * an answer is owed, the connection keeps the process alive.
 */
function unref(timer: unknown): void {
  (timer as { unref?: () => void }).unref?.();
}
