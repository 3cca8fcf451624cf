import { Code, ConnectError } from '@connectrpc/connect';
import type { AnabranchClient } from './connection.ts';
import { Patience, retrying, systemTiming } from './retry.ts';

/** Whose metrics to log, and how long points may wait. */
export interface MetricLoggerOptions {
  readonly runId: string;
  /** The stage that the series are of; absent: the run's own. */
  readonly stageId?: string;
  /** A point is sent at latest after so long. Default 1 second. */
  readonly flushAfterMs?: number;
  /** So many points are sent at once, without waiting. Default 1,000; the server takes 10,000 a call. */
  readonly batchPoints?: number;
  /** Give up when points wait and none could be logged for so long. Default 5 minutes; Infinity: never. */
  readonly giveUpAfterMs?: number;
  /** Aborting it fails the logger at once, without flushing. */
  readonly signal?: AbortSignal;
}

/**
 * Logs metrics without a call for each point. Batches are sent one after the other, in order; cuts and restarts of the server are waited
 * out (a point that arrives twice is the same point). What cannot be (the run was deleted) fails the logger: log(), flush() and close()
 * tell it from then on. Close it: what waits is sent then. Until it is sent it keeps the process alive.
 */
export interface MetricLogger {
  /** Points that are not durable yet. */
  readonly waiting: number;
  /** Takes a point, at once. Throws when the logger has failed, or when no server would take the point. */
  log(key: string, metricStep: bigint | number, value: number): void;
  /** Resolves when everything logged so far is durable. */
  flush(): Promise<void>;
  /** Flushes; log() is refused from here on. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Connects nothing: the first batch does. */
export function openMetricLogger(client: AnabranchClient, options: MetricLoggerOptions): MetricLogger {
  return new BatchingLogger(client, options);
}

interface Point {
  readonly key: string;
  readonly metricStep: bigint;
  readonly value: number;
}

const KEY_MAX_BYTES = 256;
const CALL_MAX_POINTS = 10_000;
/** A call has at most 1 MiB. */
const CALL_MAX_BYTES = 900 * 1024;
/** Tag and length of the message and of each field, the step, the value and the stage's id: never more. */
const POINT_OVERHEAD_BYTES = 80;
const INT64_MIN = -(2n ** 63n);
const INT64_MAX = 2n ** 63n - 1n;

class BatchingLogger implements MetricLogger {
  readonly #client: AnabranchClient;
  readonly #options: MetricLoggerOptions;
  readonly #batchPoints: number;
  readonly #waiting: Point[] = [];
  #timer: NodeJS.Timeout | undefined;
  #sending: Promise<void> | undefined;
  #failure: Error | undefined;
  #closed = false;

  constructor(client: AnabranchClient, options: MetricLoggerOptions) {
    this.#client = client;
    this.#options = options;
    this.#batchPoints = Math.min(options.batchPoints ?? 1_000, CALL_MAX_POINTS);
    if (!(this.#batchPoints >= 1)) throw invalid(`batchPoints is ${options.batchPoints}; a number above 0 is wanted`);
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  log(key: string, metricStep: bigint | number, value: number): void {
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#closed) throw new ConnectError('this metric logger is closed', Code.FailedPrecondition);
    this.#waiting.push(pointOf(key, metricStep, value));
    if (this.#waiting.length >= this.#batchPoints) this.#send();
    else this.#timer ??= setTimeout(() => this.#send(), this.#options.flushAfterMs ?? 1_000);
  }

  async flush(): Promise<void> {
    this.#send();
    await this.#sending;
    if (this.#failure !== undefined) throw this.#failure;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.flush();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Sends all that waits, and what comes meanwhile, too. */
  #send(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#failure !== undefined || this.#waiting.length === 0) return;
    this.#sending ??= this.#sendAll();
  }

  async #sendAll(): Promise<void> {
    const { runId, stageId = '', signal, giveUpAfterMs = 5 * 60_000 } = this.#options;
    const timing = systemTiming();
    try {
      while (this.#waiting.length > 0) {
        const points = batchOf(this.#waiting).map((point) => ({ ...point, stageId }));
        const call = () => this.#client.runs.logMetrics({ runId, points }, signal === undefined ? {} : { signal });
        await retrying(new Patience(giveUpAfterMs, timing), timing, signal, call);
        this.#waiting.splice(0, points.length);
      }
    } catch (error) {
      // Whoever logs, flushes or closes is told.
      this.#failure = error instanceof Error ? error : ConnectError.from(error);
    } finally {
      // In the same turn in which nothing was left to send: a point that comes next starts anew.
      this.#sending = undefined;
    }
  }
}

/** As many of the first points as one call takes. */
function batchOf(points: readonly Point[]): Point[] {
  let bytes = 0;
  const batch: Point[] = [];
  for (const point of points) {
    bytes += Buffer.byteLength(point.key) + POINT_OVERHEAD_BYTES;
    if (batch.length === CALL_MAX_POINTS || bytes > CALL_MAX_BYTES) break;
    batch.push(point);
  }
  return batch;
}

/** A point that no server would take is refused alone, where it was made: it would take its whole batch with it. */
function pointOf(key: string, metricStep: bigint | number, value: number): Point {
  const length = Buffer.byteLength(key);
  if (length < 1 || length > KEY_MAX_BYTES || key.includes('\0')) {
    throw invalid(
      `the key of a metric has ${length} bytes, or U+0000 in it: 1 to ${KEY_MAX_BYTES} are wanted, and no U+0000`,
    );
  }
  if (typeof metricStep === 'number' && !Number.isSafeInteger(metricStep)) {
    throw invalid(`metricStep of ${JSON.stringify(key)} is ${metricStep}: a whole number is wanted`);
  }
  const step = BigInt(metricStep);
  if (step < INT64_MIN || step > INT64_MAX) {
    throw invalid(`metricStep of ${JSON.stringify(key)} is ${metricStep}: it does not fit 64 bits`);
  }
  return { key, metricStep: step, value };
}

function invalid(message: string): ConnectError {
  return new ConnectError(message, Code.InvalidArgument);
}
