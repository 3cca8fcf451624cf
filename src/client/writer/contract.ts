import type { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { StepInit } from '../step.ts';

/** What to open for writing, and how patient to be. */
export interface WriterOptions {
  readonly trajectoryId: string;
  /** The trajectory's uid, when known: not found if the id was deleted and made again. */
  readonly uid?: string;
  /** Names this writer's life; a random UUID by default. Two live writers must not share one. */
  readonly writerId?: string;
  /** Take the trajectory over from another writer when it is first opened. Default true. */
  readonly takeOver?: boolean;
  /** Refuse (UNEXPECTED_POSITION) unless this is the trajectory's end. */
  readonly expectedNextStepNumber?: bigint;
  /** At most so many steps are on their way at once. Default 10,000. */
  readonly maxUnackedSteps?: number;
  /** At most so many bytes of steps are on their way at once; one step always may. Default 16 MiB. */
  readonly maxUnackedBytes?: number;
  /** Give up when work waits and nothing was acked for so long. Default 5 minutes; Infinity: never. */
  readonly giveUpAfterMs?: number;
  /** Take the connection for dead when work waits and the server said nothing for so long. Default 45 seconds. */
  readonly silenceMs?: number;
  /** Told of every opening, cut and end; must not throw. */
  readonly onEvent?: (event: WriterEvent) => void;
  /** Aborting it fails the writer at once, without flushing. */
  readonly signal?: AbortSignal;
}

/** What happens beside the acks; for logs and progress displays. */
export type WriterEvent =
  | { readonly type: 'opened'; readonly epoch: bigint; readonly nextStepNumber: bigint; readonly replaying: bigint }
  | { readonly type: 'cut'; readonly error: Error; readonly attempt: number; readonly retryInMs: number }
  | { readonly type: 'failed'; readonly error: Error };

/** The step is durable. */
export interface AppendResult {
  readonly stepNumber: bigint;
  /** The end that the ack told: everything below it is durable. */
  readonly nextStepNumber: bigint;
}

/** The three ways to end a trajectory. */
export type SealStatus = Status.COMPLETED | Status.FAILED | Status.CANCELLED;

/** The trajectory is sealed: no more steps, for good. */
export interface Sealed {
  readonly status: Status;
  readonly message: string;
  readonly nextStepNumber: bigint;
  readonly sealTime: Date | undefined;
}

/**
 * Writes one trajectory. Steps become durable in the order of the calls; cuts, restarts of the server and full disks are
 * waited out and replayed without the caller's doing. What cannot be (another writer took over, a step was refused) fails
 * the writer: pending and later calls reject with that error, and none of their steps is sent again (one that was on its way
 * may have been stored). An open writer keeps the process alive; close it.
 */
export interface TrajectoryWriter {
  readonly trajectoryId: string;
  readonly writerId: string;
  /** The newest epoch granted. */
  readonly epoch: bigint;
  readonly uid: string;
  /** The number that the next append() gets. After opening: where to go on (rule W13). */
  readonly nextStepNumber: bigint;
  /** Everything below it that this writer made is durable. */
  readonly ackedNextStepNumber: bigint;
  /** The trajectory's status as the last opening told it; a sealed one takes no more steps. */
  readonly status: Status;
  /**
   * Gives the step the next number and sends it; resolves when it is durable. The step is copied before append() returns.
   * Await it for lockstep, or go on and `flush()` later. A step that cannot be sent (too large, not JSON) is refused
   * alone and takes no number. A rejection that nobody awaits does not end the process: flush() and close() tell it too.
   */
  append(step: StepInit): Promise<AppendResult>;
  /** Resolves while less than maxUnackedSteps and maxUnackedBytes wait: what bounds memory for callers that do not await append(). */
  ready(): Promise<void>;
  /** Resolves when everything appended so far is durable. */
  flush(): Promise<void>;
  /** Flushes and ends the trajectory; append() is refused from here on. */
  seal(status: SealStatus, message?: string): Promise<Sealed>;
  /** Flushes and ends the stream; the trajectory stays open for others. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}
