import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import type { Step, Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AppendError, ReadTrajectoriesRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { ClientCalls } from './calls.ts';
import { stepAfter } from './reader.ts';
import { type ResumeOptions, resumedStream } from './resumed_stream.ts';

/** Options of readTrajectories(): filters, order, view and scope of steps are those of the RPC. */
export interface TrajectoryReadOptions
  extends ResumeOptions,
    Omit<MessageInitShape<typeof ReadTrajectoriesRequestSchema>, '$typeName' | '$unknown'> {}

/** A trajectory with its steps. */
export interface TrajectoryWithSteps {
  readonly trajectory: Trajectory;
  /** The requested steps in order. */
  readonly steps: readonly Step[];
  /**
   * With `inlineBytes`: the bytes of states and contents that the steps name, by digest. It can also have those of earlier
   * trajectories. Changed when the next trajectory is taken.
   */
  readonly blobs: ReadonlyMap<string, Uint8Array>;
  /** True if the trajectory was deleted while it was read. Its steps are incomplete then. */
  readonly deleted: boolean;
  /** Set if the stored bytes of the trajectory are damaged. Its steps are incomplete then. */
  readonly error: AppendError | undefined;
  /** Continues after this trajectory, as `resumeToken` of another call with the same options. */
  readonly resumeToken: string;
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
  { signal, giveUpAfterMs, silenceMs, ...request }: TrajectoryReadOptions = {},
): AsyncGenerator<TrajectoryWithSteps, void, undefined> {
  let resumeToken = request.resumeToken ?? '';
  const blobs = new Map<string, Uint8Array>();
  let reading: { readonly trajectory: Trajectory; readonly steps: Step[] } | undefined;
  const read = (ended: AbortSignal) =>
    client.trajectories.readTrajectories({ ...request, resumeToken }, { signal: ended });
  for await (const message of resumedStream({ signal, giveUpAfterMs, silenceMs }, read)) {
    const { trajectory, trajectoryDone, deleted, error } = message;
    for (const { digest, data } of message.blobs) {
      blobs.delete(digest);
      blobs.set(digest, data);
    }
    if (trajectory !== undefined) reading = { trajectory, steps: [] };
    if (reading !== undefined) addSteps(reading.steps, message.steps);
    else if (message.steps.length > 0) throw new ConnectError('the server sent steps of no trajectory', Code.DataLoss);
    resumeToken = message.resumeToken;
    if (!trajectoryDone || reading === undefined) continue;
    yield { ...reading, blobs, deleted, error, resumeToken };
    reading = undefined;
    forgetFirst(blobs, blobs.size - REMEMBERED_BLOBS);
  }
}

function addSteps(steps: Step[], more: readonly Step[]): void {
  for (const step of more) {
    const last = steps.at(-1);
    if (last !== undefined) stepAfter(last.stepNumber + 1n, step.stepNumber);
    steps.push(step);
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
