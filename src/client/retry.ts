import { Code, ConnectError } from '@connectrpc/connect';
import { isUnauthenticated, reasonOf, retryDelayMs } from './errors.ts';

/** The clock, random numbers and timers that retries use. */
export interface Timing {
  /** Monotonic time in milliseconds. */
  now(): number;
  /** A random number, at least 0 and below 1. */
  random(): number;
  /** Resolves after `ms` milliseconds. Rejects with the signal's reason when the signal is aborted. */
  sleep(ms: number, signal: AbortSignal | undefined): Promise<void>;
}

/** Returns the machine's own clock and timers. Its timers keep the process alive while a caller waits for a retry. */
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
/** INTERNAL errors in a row, without progress, after which a retry is considered useless. */
const MAX_SERVER_FAULTS = 3;

/**
 * Codes of permanent errors. An error without an Anabranch reason that has such a code comes from a proxy or another
 * service.
 */
const PERMANENT_CODES = new Set([
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

/**
 * Reasons after which a retry of the same call can succeed. Data in flight may or may not be stored, so callers replay
 * it.
 */
const TRANSIENT_REASONS = new Set([
  'STORAGE_FULL',
  'BACKUP_IN_PROGRESS',
  'MEMORY_FULL',
  'CALLER_LIMIT',
  'DATABASE_UNAVAILABLE',
  'DATABASE_READ_ONLY',
  'STORAGE_LOST',
  'SERVER_DRAINING',
  'TOO_MANY_CONNECTIONS',
  'SLOW_READER',
  'CANCELLED',
  'DEADLINE_EXCEEDED',
  'MESSAGE_TIMEOUT',
  'INTERNAL',
]);

/**
 * Returns whether a retry of the same call can succeed. Transports report a lost connection as UNAVAILABLE, ABORTED,
 * CANCELLED, UNKNOWN or INTERNAL without a reason. For example, REFUSED_STREAM after a GOAWAY is one of these.
 */
export function isTransient(error: unknown): boolean {
  if (!(error instanceof ConnectError)) return false;
  const reason = reasonOf(error);
  if (reason === undefined) return !PERMANENT_CODES.has(error.code);
  return TRANSIENT_REASONS.has(reason) || error.code === Code.Unavailable;
}

/** When to retry. */
export interface Pause {
  /** Number of failures since the last progress, beginning with 1. */
  readonly attempt: number;
  readonly delayMs: number;
}

/** Decides how long to wait before the next retry, and when to give up. Progress resets it. */
export class Patience {
  readonly #timing: Timing;
  readonly #giveUpAfterMs: number;
  #attempt = 0;
  #faults = 0;
  #wasUnauthenticated = false;
  #stalledSince: number | undefined;

  constructor(giveUpAfterMs: number, timing: Timing) {
    this.#giveUpAfterMs = giveUpAfterMs;
    this.#timing = timing;
  }

  /** Records that something succeeded since the last failure. */
  progress(): void {
    this.#attempt = 0;
    this.#faults = 0;
    this.#wasUnauthenticated = false;
    this.#stalledSince = undefined;
  }

  /**
   * Records a failure and returns when to retry. Throws the error if it is permanent, and DEADLINE_EXCEEDED when the
   * time is up.
   */
  next(error: unknown): Pause {
    if (isUnauthenticated(error) && !this.#wasUnauthenticated) {
      // The next call may carry another token.
      this.#wasUnauthenticated = true;
      return this.nextAfterRefusals(error, 0);
    }
    if (!isTransient(error)) throw error;
    if (reasonOf(error) === 'INTERNAL' && ++this.#faults >= MAX_SERVER_FAULTS) throw error;
    return this.#pause(error);
  }

  /**
   * Like next(), for an error that the caller can resolve itself. The first such error in a row is retried without
   * delay.
   */
  nextAfterRefusals(error: unknown, refusals: number): Pause {
    const pause = this.#pause(error);
    return refusals === 0 ? { ...pause, delayMs: 0 } : pause;
  }

  #pause(error: unknown): Pause {
    const now = this.#timing.now();
    this.#stalledSince ??= now;
    const requestedMs = Math.min(retryDelayMs(error) ?? 0, LONGEST_ASKED_DELAY_MS);
    const step = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#attempt);
    const delayMs = requestedMs + this.#timing.random() * step;
    if (now + delayMs - this.#stalledSince >= this.#giveUpAfterMs) throw this.#gaveUp(error);
    this.#attempt += 1;
    return { attempt: this.#attempt, delayMs };
  }

  #gaveUp(cause: unknown): ConnectError {
    const seconds = Math.round(this.#giveUpAfterMs / 1000);
    const last = cause instanceof Error ? cause.message : String(cause);
    const message = `gave up after ${seconds} s without progress; last error: ${last}`;
    return new ConnectError(message, Code.DeadlineExceeded, undefined, undefined, cause);
  }
}

/**
 * Repeats a call until it succeeds, fails with a permanent error, or the time is up. The call must be safe to repeat.
 */
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
