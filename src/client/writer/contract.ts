import { clone, create, type MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import type { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import {
  type TrajectoryCreation,
  TrajectoryCreationSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { StepInit } from '../step.ts';

/** Options of openWriter(). */
export interface WriterOptions {
  readonly trajectoryId: string;
  /**
   * Creates the trajectory when the writer is opened, if it does not exist: `{ trajectory: { name: 'first' } }`, or
   * `{ branch: { trajectoryId: 'ID', stepNumber: 2n } }`. The fields are those of CreateTrajectory and
   * BranchTrajectory. The id is that of the writer; `requestId` is a random UUID by default. Opening fails with
   * TRAJECTORY_EXISTS if another request created the id, and with TRAJECTORY_NOT_FOUND if it was deleted.
   */
  readonly create?: MessageInitShape<typeof TrajectoryCreationSchema>;
  /**
   * Uid of the trajectory, if known. Opening then fails with TRAJECTORY_NOT_FOUND if the id was deleted and created
   * again.
   */
  readonly uid?: string;
  /** Id of this writer for its lifetime. Default: a random UUID. Two live writers must not share one. */
  readonly writerId?: string;
  /** Takes the trajectory over from another writer at the first opening. Default true. */
  readonly takeOver?: boolean;
  /** Fails with UNEXPECTED_POSITION unless this is the trajectory's end. */
  readonly expectedNextStepNumber?: bigint;
  /** Maximum number of steps in flight. Default 10,000. */
  readonly maxUnackedSteps?: number;
  /** Maximum bytes of steps in flight; a single larger step is still sent. Default 16 MiB. */
  readonly maxUnackedBytes?: number;
  /**
   * Fails the writer when work waits and nothing was acked for this many milliseconds. Default 5 minutes. Infinity
   * disables the limit.
   */
  readonly giveUpAfterMs?: number;
  /** Reconnects when work waits and the server sends nothing for this many milliseconds. Default 45,000. */
  readonly silenceMs?: number;
  /** Called when a stream is opened or lost, and when the writer fails. Must not throw. */
  readonly onEvent?: (event: WriterEvent) => void;
  /** Fails the writer at once, without a flush, when it is aborted. */
  readonly signal?: AbortSignal;
}

/** Events beside the acks, for logs and progress displays. */
export type WriterEvent =
  | { readonly type: 'opened'; readonly epoch: bigint; readonly nextStepNumber: bigint; readonly replaying: bigint }
  | { readonly type: 'cut'; readonly error: Error; readonly attempt: number; readonly retryInMs: number }
  | { readonly type: 'failed'; readonly error: Error };

/** Result of append(): the step is durable. */
export interface AppendResult {
  readonly stepNumber: bigint;
  /** The end that the ack reported: all steps below it are durable. */
  readonly nextStepNumber: bigint;
}

/** The three statuses that end a trajectory. */
export type SealStatus = Status.COMPLETED | Status.FAILED | Status.CANCELLED;

/** Result of seal(). The trajectory accepts no more steps. */
export interface Sealed {
  readonly status: Status;
  readonly message: string;
  readonly nextStepNumber: bigint;
  readonly sealTime: Date | undefined;
}

/**
 * Writes one trajectory. Steps become durable in the order of the calls. The writer retries and replays through lost
 * connections, server restarts and full disks. It fails when another writer took over, or when a step is rejected:
 * pending and later calls then reject with that error. A failed writer sends no step again; a step that was in flight
 * may have been stored. An open writer keeps the process alive; close it.
 */
export interface TrajectoryWriter {
  readonly trajectoryId: string;
  readonly writerId: string;
  /** The newest epoch that the server granted. */
  readonly epoch: bigint;
  readonly uid: string;
  /** The number that the next append() assigns. After opening, it is the position to resume from (rule W13). */
  readonly nextStepNumber: bigint;
  /** All steps of this writer below this number are durable. */
  readonly ackedNextStepNumber: bigint;
  /** Status of the trajectory at the last opening. A sealed trajectory accepts no more steps. */
  readonly status: Status;
  /**
   * Appends a step under the next number. Resolves when the step is durable. The step is copied before append()
   * returns. Await each call for lockstep, or call flush() later. An invalid step (too large, not JSON) rejects alone
   * and takes no number. An unawaited rejection does not end the process, because flush() and close() report it too.
   */
  append(step: StepInit): Promise<AppendResult>;
  /**
   * Resolves when fewer than `maxUnackedSteps` steps and `maxUnackedBytes` bytes wait. Use it to bound memory when
   * append() is not awaited.
   */
  ready(): Promise<void>;
  /** Resolves when every step appended so far is durable. Rejects if the writer has failed. */
  flush(): Promise<void>;
  /** Flushes and seals the trajectory. Later calls of append() reject. `message` has at most 4,096 bytes. */
  seal(status: SealStatus, message?: string): Promise<Sealed>;
  /** Flushes and closes the stream. The trajectory stays open for other writers. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

type WithDefaults = 'takeOver' | 'maxUnackedSteps' | 'maxUnackedBytes' | 'giveUpAfterMs' | 'silenceMs';

/** The options that have defaults, with their defaults applied. */
export type Settings = Required<Pick<WriterOptions, WithDefaults>>;

/** Applies the defaults. Throws INVALID_ARGUMENT if an option is out of bounds. */
export function settingsOf(options: WriterOptions): Settings {
  return {
    takeOver: options.takeOver ?? true,
    maxUnackedSteps: positive('maxUnackedSteps', options.maxUnackedSteps ?? 10_000),
    maxUnackedBytes: positive('maxUnackedBytes', options.maxUnackedBytes ?? 16 * 1024 * 1024),
    giveUpAfterMs: positive('giveUpAfterMs', options.giveUpAfterMs ?? 5 * 60_000),
    silenceMs: positive('silenceMs', options.silenceMs ?? 45_000),
  };
}

function positive(option: string, value: number): number {
  if (value > 0) return value;
  throw new ConnectError(`${option} is ${value}: expected a number above 0`, Code.InvalidArgument);
}

/** Returns a copy, with the id of the trajectory and a request id where they are unset. */
export function creationOf(
  init: MessageInitShape<typeof TrajectoryCreationSchema>,
  trajectoryId: string,
): TrajectoryCreation {
  const creation = clone(TrajectoryCreationSchema, create(TrajectoryCreationSchema, init));
  const { trajectory, branch } = creation;
  if (trajectory !== undefined) trajectory.trajectoryId ||= trajectoryId;
  if (branch !== undefined) branch.branchId ||= trajectoryId;
  for (const request of [trajectory, branch]) if (request !== undefined) request.requestId ||= crypto.randomUUID();
  return creation;
}
