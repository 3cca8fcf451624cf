import { Code, ConnectError } from '@connectrpc/connect';

/**
 * Tells when an answer is owed and none comes. Costs one timer per period, not one per message: the timer looks when something
 * was last heard and waits for the rest.
 */
export class Silence {
  readonly #limitMs: number;
  readonly #tooLong: (error: Error) => void;
  #since: number | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(limitMs: number, tooLong: (error: Error) => void) {
    this.#limitMs = limitMs;
    this.#tooLong = tooLong;
  }

  /** An answer is owed from now on, if it was not before. */
  expect(): void {
    if (this.#since === undefined) this.heard();
  }

  /** Something was heard, and more is owed. */
  heard(): void {
    if (!Number.isFinite(this.#limitMs)) return;
    this.#since = performance.now();
    this.#timer ??= this.#arm(this.#limitMs);
  }

  /** Nothing is owed. The timer runs on, in case something soon will be. */
  rest(): void {
    this.#since = undefined;
  }

  stop(): void {
    this.#since = undefined;
    clearTimeout(this.#timer);
  }

  #arm(ms: number): ReturnType<typeof setTimeout> {
    const due = performance.now() + ms;
    // Answers may lie unread when the timer fires. Sockets are read between two rounds of timers.
    const timer = setTimeout(() => setTimeout(() => this.#look(due)), ms);
    keepsNobodyAlive(timer);
    return timer;
  }

  #look(due: number): void {
    this.#timer = undefined;
    if (this.#since === undefined) return;
    const now = performance.now();
    // Much too late: it was this process that stood still, and the server gets its time anew.
    if (now - due > this.#limitMs / 2) this.#since = now;
    const left = this.#since + this.#limitMs - now;
    if (left > 0) {
      this.#timer = this.#arm(left);
      return;
    }
    this.#since = undefined;
    const message = `nothing was heard from the server for ${this.#limitMs / 1000} s`;
    this.#tooLong(new ConnectError(message, Code.Unavailable));
  }
}

/** Node's timers keep the process alive, and those of browsers do not. While an answer is owed, its connection keeps the process alive. */
function keepsNobodyAlive(timer: unknown): void {
  (timer as { unref?: () => void }).unref?.();
}
