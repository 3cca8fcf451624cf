import { Code, ConnectError } from '@connectrpc/connect';
import { reasonOf, retryDelayMs } from './errors.ts';

/** What waiting needs of the world. */
export interface Timing {
  /** Milliseconds that only ever rise. */
  now(): number;
  /** At least 0, below 1. */
  random(): number;
  /** Resolves after that many milliseconds; rejects with the signal's reason when it is aborted. */
  sleep(ms: number, signal: AbortSignal | undefined): Promise<void>;
}

/** The machine's own clock and timers. They keep the process alive while somebody waits for a retry. */
export function systemTiming(): Timing {
  return {
    now: () => performance.now(),
    random: Math.random,
    sleep: (ms, signal) =>
      new Promise((resolve, reject) => {
        if (signal?.aborted) return reject(signal.reason);
        const aborted = () => {
          clearTimeout(timer);
          reject(signal?.reason);
        };
        const timer = setTimeout(() => {
          signal?.removeEventListener('abort', aborted);
          resolve();
        }, ms);
        signal?.addEventListener('abort', aborted, { once: true });
      }),
  };
}

const FIRST_DELAY_MS = 100;
const LONGEST_DELAY_MS = 5_000;
const LONGEST_ASKED_DELAY_MS = 60_000;
/** A fault of the server that the same work meets so often in a row is not going away. */
const SERVER_FAULTS_TAKEN = 3;

/** Codes that a refusal by meaning has; without a reason of ours they come from a proxy or another service, and stay. */
const MEANT = new Set([
  Code.InvalidArgument,
  Code.NotFound,
  Code.AlreadyExists,
  Code.PermissionDenied,
  Code.FailedPrecondition,
  Code.OutOfRange,
  Code.Unimplemented,
  Code.DataLoss,
  Code.Unauthenticated,
]);

/** Reasons after which the same call may well succeed. What was in flight may or may not be stored: replay it. */
const TRANSIENT = new Set([
  'STORAGE_FULL',
  'DATABASE_UNAVAILABLE',
  'SERVER_DRAINING',
  'TOO_MANY_CONNECTIONS',
  'SLOW_READER',
  'CANCELLED',
  'DEADLINE_EXCEEDED',
  'MESSAGE_TIMEOUT',
  'INTERNAL',
]);

/**
 * Whether the same call, made again, may succeed. Everything that a transport makes of a lost connection counts: it comes as
 * UNAVAILABLE, ABORTED, CANCELLED, UNKNOWN or INTERNAL (REFUSED_STREAM after a GOAWAY for one), and without a reason.
 */
export function isTransient(error: unknown): boolean {
  if (!(error instanceof ConnectError)) return false;
  const reason = reasonOf(error);
  if (reason === undefined) return !MEANT.has(error.code);
  return TRANSIENT.has(reason) || error.code === Code.Unavailable;
}

/** When to try again. */
export interface Pause {
  /** 1 for the first failure since the last progress. */
  readonly attempt: number;
  readonly delayMs: number;
}

/** How long to wait before the next try, and when to stop trying. Progress starts it afresh. */
export class Patience {
  readonly #timing: Timing;
  readonly #giveUpAfterMs: number;
  #attempt = 0;
  #faults = 0;
  #stalledSince: number | undefined;

  constructor(giveUpAfterMs: number, timing: Timing) {
    this.#giveUpAfterMs = giveUpAfterMs;
    this.#timing = timing;
  }

  /** Something was achieved since the last failure. */
  progress(): void {
    this.#attempt = 0;
    this.#faults = 0;
    this.#stalledSince = undefined;
  }

  /** Takes note of a failure and says when to try again; throws the error when it is final, or another when time is up. */
  next(error: unknown): Pause {
    if (!isTransient(error)) throw error;
    if (reasonOf(error) === 'INTERNAL' && ++this.#faults >= SERVER_FAULTS_TAKEN) throw error;
    return this.#pause(error);
  }

  /** The same for a refusal that the caller has an answer to: the first in a row is answered at once. */
  again(error: unknown, refusals: number): Pause {
    const pause = this.#pause(error);
    return refusals === 0 ? { ...pause, delayMs: 0 } : pause;
  }

  #pause(error: unknown): Pause {
    const now = this.#timing.now();
    this.#stalledSince ??= now;
    const asked = Math.min(retryDelayMs(error) ?? 0, LONGEST_ASKED_DELAY_MS);
    const step = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#attempt);
    const delayMs = asked + this.#timing.random() * step;
    if (now + delayMs - this.#stalledSince >= this.#giveUpAfterMs) throw this.#gaveUp(error);
    this.#attempt += 1;
    return { attempt: this.#attempt, delayMs };
  }

  #gaveUp(cause: unknown): ConnectError {
    const seconds = Math.round(this.#giveUpAfterMs / 1000);
    const said = cause instanceof Error ? cause.message : String(cause);
    const message = `gave up: ${seconds} s without progress; at last: ${said}`;
    return new ConnectError(message, Code.DeadlineExceeded, undefined, undefined, cause);
  }
}

/** Makes a call that is safe to repeat, until it succeeds, fails for good, or patience ends. */
export async function retrying<T>(
  patience: Patience,
  timing: Timing,
  signal: AbortSignal | undefined,
  call: () => Promise<T>,
): Promise<T> {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      signal?.throwIfAborted();
      await timing.sleep(patience.next(error).delayMs, signal);
    }
  }
}
