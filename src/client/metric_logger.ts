import { Code, ConnectError } from '@connectrpc/connect';
import type { AnabranchClient } from './connection.ts';
import type { Limits } from './limits.ts';
import { Patience, retrying, systemTiming } from './retry.ts';

/** Options of openMetricLogger(). */
export interface MetricLoggerOptions {
  readonly runId: string;
  /** Logs series of this stage. Default: series of the run itself. */
  readonly stageId?: string;
  /** Longest time that a point waits before it is sent, in milliseconds. Default 1,000. */
  readonly flushAfterMs?: number;
  /**
   * Number of waiting points that are sent at once, without waiting for `flushAfterMs`. Default 1,000, at most the
   * server's `metricPoints`.
   */
  readonly batchPoints?: number;
  /**
   * Fails the logger when points wait and none could be logged for this many milliseconds. Default 5 minutes. Infinity
   * disables the limit.
   */
  readonly giveUpAfterMs?: number;
  /** Fails the logger at once, without a flush, when it is aborted. */
  readonly signal?: AbortSignal;
}

/**
 * Logs metrics in batches. Batches are sent one at a time, in order. The logger retries through lost connections and
 * server restarts; a point that arrives twice is stored once. A permanent error, for example a deleted run, fails the
 * logger: log(), flush() and close() then throw it. Close the logger to send the waiting points; waiting points keep
 * the process alive.
 */
export interface MetricLogger {
  /** Number of points that are not durable yet. */
  readonly waiting: number;
  /** Queues a point. Throws if the logger has failed or is closed, or if the point is invalid. */
  log(key: string, metricStep: bigint | number, value: number): void;
  /** Resolves when every point logged so far is durable. Rejects if the logger has failed. */
  flush(): Promise<void>;
  /** Flushes and closes the logger. Later calls of log() throw. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Creates a metric logger. Nothing is sent until the first batch. */
export function openMetricLogger(client: AnabranchClient, options: MetricLoggerOptions): MetricLogger {
  return new BatchingLogger(client, options);
}

interface PointInit {
  readonly key: string;
  readonly metricStep: bigint | number;
  readonly value: number;
}

interface Point {
  readonly key: string;
  readonly metricStep: bigint;
  readonly value: number;
}

/** Part of `messageBytes` that the points of a call may take. */
const CALL_SHARE = 0.88;
/** Upper bound of what a point adds to its key: tags and lengths, the step, the value and the stage's id. */
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
    this.#batchPoints = options.batchPoints ?? 1_000;
    if (!(this.#batchPoints >= 1)) throw invalid(`batchPoints is ${options.batchPoints}: expected a number above 0`);
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  log(key: string, metricStep: bigint | number, value: number): void {
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#closed) throw new ConnectError('this metric logger is closed', Code.FailedPrecondition);
    const { seriesNameBytes, metricPoints } = this.#client.limits.current;
    this.#waiting.push(pointOf({ key, metricStep, value }, seriesNameBytes));
    if (this.#waiting.length >= Math.min(this.#batchPoints, metricPoints)) this.#send();
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

  /** Sends all waiting points, including points that are logged while it sends. */
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
        const call = async () => {
          await this.#client.limits.load({ signal });
          const points = batchOf(this.#waiting, this.#client.limits.current).map((point) => ({ ...point, stageId }));
          await this.#client.runs.logMetrics({ runId, points }, signal === undefined ? {} : { signal });
          return points.length;
        };
        const sent = await retrying(new Patience(giveUpAfterMs, timing), timing, signal, call);
        this.#waiting.splice(0, sent);
      }
    } catch (error) {
      // log(), flush() and close() throw this error.
      this.#failure = error instanceof Error ? error : ConnectError.from(error);
    } finally {
      // Must run in the event-loop iteration in which the queue became empty, so that the next point starts a new send.
      this.#sending = undefined;
    }
  }
}

/** Returns the first points that fit into one call. */
function batchOf(points: readonly Point[], { metricPoints, messageBytes }: Limits): Point[] {
  let bytes = 0;
  const batch: Point[] = [];
  for (const point of points) {
    bytes += Buffer.byteLength(point.key) + POINT_OVERHEAD_BYTES;
    if (batch.length === metricPoints || bytes > messageBytes * CALL_SHARE) break;
    batch.push(point);
  }
  return batch;
}

/** Checks one point when it is logged. Otherwise the server would reject the whole batch that contains it. */
function pointOf({ key, metricStep, value }: PointInit, maxBytes: number): Point {
  const length = Buffer.byteLength(key);
  if (length < 1 || length > maxBytes || key.includes('\0')) {
    throw invalid(`key of a metric has ${length} bytes: expected 1 to ${maxBytes} bytes without U+0000`);
  }
  if (typeof metricStep === 'number' && !Number.isSafeInteger(metricStep)) {
    throw invalid(`metricStep of ${JSON.stringify(key)} is ${metricStep}: expected a whole number`);
  }
  const step = BigInt(metricStep);
  if (step < INT64_MIN || step > INT64_MAX) {
    throw invalid(`metricStep of ${JSON.stringify(key)} is ${metricStep}: expected a signed 64-bit integer`);
  }
  return { key, metricStep: step, value };
}

function invalid(message: string): ConnectError {
  return new ConnectError(message, Code.InvalidArgument);
}
