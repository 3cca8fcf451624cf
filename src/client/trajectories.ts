import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import type { Step, Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { PartError, ReadTrajectoriesRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { ClientCalls } from './calls.ts';
import { stepAfter } from './reader.ts';
import { type ResumeOptions, resumedStream } from './resumed_stream.ts';

/** Options of readTrajectories(): filters, order, view and scope of steps are those of the RPC. */
export interface TrajectoryReadOptions
  extends ResumeOptions,
    Omit<MessageInitShape<typeof ReadTrajectoriesRequestSchema>, '$typeName' | '$unknown'> {}

/** What a message adds to a trajectory that is read. */
interface TrajectoryPosition {
  readonly trajectory: Trajectory;
  /**
   * With `inlineBytes`: the bytes of states and contents that the steps name, by digest. It can also have those of
   * earlier trajectories. Changed when the next trajectory is taken.
   */
  readonly blobs: ReadonlyMap<string, Uint8Array>;
  /** True if the trajectory was deleted while it was read. Its steps are incomplete then. */
  readonly deleted: boolean;
  /** Set if the stored bytes of the trajectory are damaged. Its steps are incomplete then. */
  readonly error: PartError | undefined;
  /** Continues after this trajectory, as `resumeToken` of another call with the same options. */
  readonly resumeToken: string;
}

/** A trajectory with its steps. */
export interface TrajectoryWithSteps extends TrajectoryPosition {
  /** The requested steps in order. */
  readonly steps: readonly Step[];
}

/** Some of the steps of a trajectory, from one message. `resumeToken` can only be used if this is the last part. */
export interface TrajectoryPart extends TrajectoryPosition {
  /** The next steps in order. */
  readonly steps: readonly Step[];
  /** Id of the trajectory that owns these steps. Empty without steps. */
  readonly ownerId: string;
  /** True if this is the last part of the trajectory. */
  readonly done: boolean;
}

/** Blobs that the server does not repeat. */
const REMEMBERED_BLOBS = 4096;

/**
 * Reads the trajectories that match a filter, each with its steps. After a lost connection it reconnects and continues
 * after the last message. Throws permanent errors, and DEADLINE_EXCEEDED after `giveUpAfterMs` without progress.
 *
 *     for await (const { trajectory, steps } of readTrajectories(client, { taskId: 'CartPole-v1', minLength: 100n }))
 *       console.log(trajectory.rewardSum, steps.length);
 */
export async function* readTrajectories(
  client: Pick<ClientCalls, 'trajectories'>,
  options: TrajectoryReadOptions = {},
): AsyncGenerator<TrajectoryWithSteps, void, undefined> {
  let steps: Step[] = [];
  for await (const { steps: more, ownerId: _, done, ...position } of readTrajectoryParts(client, options)) {
    for (const step of more) steps.push(step);
    if (!done) continue;
    yield { ...position, steps };
    steps = [];
  }
}

/**
 * Reads the trajectories that match a filter, in parts as the server sends them, so that memory does not grow with the
 * length of a trajectory. Each trajectory has at least one part, and its last one is `done`. Continues after lost
 * connections and fails as readTrajectories() does.
 */
export async function* readTrajectoryParts(
  client: Pick<ClientCalls, 'trajectories'>,
  { signal, giveUpAfterMs, silenceMs, ...request }: TrajectoryReadOptions = {},
): AsyncGenerator<TrajectoryPart, void, undefined> {
  let resumeToken = request.resumeToken ?? '';
  const blobs = new Map<string, Uint8Array>();
  let trajectory: Trajectory | undefined;
  let next: bigint | undefined;
  const read = (ended: AbortSignal) =>
    client.trajectories.readTrajectories({ ...request, resumeToken }, { signal: ended });
  for await (const message of resumedStream({ signal, giveUpAfterMs, silenceMs }, read)) {
    const { steps, ownerId, trajectoryDone: done, deleted, error } = message;
    for (const { digest, data } of message.blobs) {
      blobs.delete(digest);
      blobs.set(digest, data);
    }
    if (message.trajectory !== undefined) [trajectory, next] = [message.trajectory, undefined];
    else if (trajectory === undefined && steps.length > 0) {
      throw new ConnectError('the server sent steps of no trajectory', Code.DataLoss);
    }
    for (const { stepNumber } of steps) next = stepAfter(next ?? stepNumber, stepNumber);
    resumeToken = message.resumeToken;
    if (trajectory === undefined || (steps.length === 0 && !done)) continue;
    yield { trajectory, steps, ownerId, done, blobs, deleted, error, resumeToken };
    if (!done) continue;
    trajectory = undefined;
    forgetFirst(blobs, blobs.size - REMEMBERED_BLOBS);
  }
}

function forgetFirst(blobs: Map<string, Uint8Array>, count: number): void {
  let left = count;
  for (const digest of blobs.keys()) {
    if (left <= 0) return;
    blobs.delete(digest);
    left -= 1;
  }
}
