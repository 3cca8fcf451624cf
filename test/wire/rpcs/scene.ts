import { randomUUID } from 'node:crypto';
import { create, type DescMethod, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import type { Client } from '@connectrpc/connect';
import type { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import type { RetentionService } from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { type Step, StepSchema } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { sha256 } from '../samples.ts';
import { putState, type WireClient } from '../story.ts';

/** The cases of every RPC: one entry for each. Types and tests check that none is missing. */

/** Calls of the services that scenes need. */
export interface RpcClient extends WireClient {
  readonly retention: Client<typeof RetentionService>;
  readonly admin: Client<typeof AdminService>;
}

/** The scene before an RPC is called; a new one for every set of calls. */
export interface Scene extends RpcClient {
  readonly task: string;
  /** The run and the experiment of both trajectories below. */
  readonly runId: string;
  readonly experimentId: string;
  /**
   * Steps 0 to 3, open, without a writer; step 1 has the state `env`, step 2 the states `env` and `memory`. Tag `here`
   * names step 1.
   */
  readonly id: string;
  readonly uid: string;
  /** Branched at step 1, one own step, sealed. */
  readonly branchId: string;
  /** A state that was uploaded, and that no step refers to. */
  readonly put: string;
}

export type Init<M extends DescMethod> = MessageInitShape<M['input']>;

/** `S`: the scene of requests that succeed, which makes no more than they need. `R`: the scene of refused ones. */
export interface Rpc<M extends DescMethod, S = Scene, R = S> {
  /** Requests that succeed, each in the frames that its method sends. Together they set every field of the request. */
  requests(scene: S): Promise<Init<M>[][]> | Init<M>[][];
  /** The answer to the last of the requests. */
  served(answers: MessageShape<M['output']>[], scene: S): void;
  /**
   * Requests that are refused, by the reasons that the proto documents for the method, in an order in which one scene
   * serves all.
   */
  refused(scene: R): { readonly [reason: string]: Init<M>[] | (() => Promise<Init<M>[]>) };
}

export type Rpcs<Methods extends Record<string, DescMethod>, S = Scene, R = S> = {
  readonly [Name in keyof Methods]: Rpc<Methods[Name], S, R>;
};

export const NOBODY = '00000000-0000-4000-8000-000000000000';
export const NO_STATE = '0'.repeat(64);
export const LONG_AGO = { seconds: 1n, nanos: 1 };
export const LATE = { seconds: 4_000_000_000n, nanos: 1 };
export const LABELS = { label: 'value' };

export function bytes(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** A state that contents of `richStep` name. It must be put first. */
export const FILE = bytes('file');

/** A step with text in every field that can contain some. */
export function richStep(stepNumber: bigint): Step {
  return create(StepSchema, {
    stepNumber,
    actions: [
      { type: 'tool_call', name: 'look', callId: 'c1', content: { text: 'around' }, tokenIds: [1], logprobs: [-0.5] },
      {
        type: 'code',
        content: { json: '{"a":1}' },
        promptTokenIds: [7, 8],
        keptTokens: 3,
        tokenIdsState: sha256(FILE),
      },
      { type: 'plan', promptTokenIdsState: sha256(FILE) },
    ],
    observations: [
      { type: 'tool_result', callId: 'c1', isError: true, content: { data: bytes('png'), mediaType: 'image/png' } },
      { type: 'link', content: { uri: 'https://example.org/', mediaType: 'text/html' } },
      { type: 'file', content: { stateDigest: sha256(FILE), mediaType: 'text/plain' } },
      { type: 'pixels', content: { tensor: { dtype: '|u1', shape: [3], data: bytes('rgb') } } },
      { type: 'depth', content: { tensor: { dtype: '|u1', shape: [FILE.length], stateDigest: sha256(FILE) } } },
    ],
    reward: 0.5,
    terminated: true,
    truncated: true,
    infoJson: '{"info":true}',
    metadataJson: '{"metadata":true}',
    metrics: { value: 1.5 },
    labels: { phase: 'train' },
    startTime: LONG_AGO,
    endTime: LATE,
    states: [{ name: 'env', data: bytes('state'), digest: sha256(bytes('state')), mediaType: 'text/plain' }],
  });
}

export async function makeScene(client: RpcClient): Promise<Scene> {
  const task = `rpcs/${randomUUID()}`;
  const [put, { experiment }] = await Promise.all([
    putState(client, bytes(task)),
    client.runs.createExperiment({ name: task }),
    putState(client, FILE),
  ]);
  const { run } = await client.runs.createRun({ experimentName: task });
  const [runId, experimentId] = [run!.id, experiment!.id];
  const fields = { name: 'main', taskId: task, runId, labels: LABELS, metadataJson: '{"seed":1}' };
  const { trajectory } = await client.trajectories.createTrajectory({ ...fields, root: richRoot() });
  const trajectoryId = trajectory!.id;
  const env = (text: string, name = 'env') => ({ name, data: bytes(text), mediaType: 'text/plain' });
  const steps = [
    { stepNumber: 1n, reward: 1, states: [env('one')] },
    { stepNumber: 2n, reward: 2, states: [env('two'), env('mind', 'memory')] },
    { stepNumber: 3n, reward: 3, terminated: true },
  ];
  await appendAll(client, trajectoryId, steps);
  await client.trajectories.setTag({ trajectoryId, name: 'here', stepNumber: 1n });
  const branched = await client.trajectories.branchTrajectory({
    trajectoryId,
    stepNumber: 1n,
    name: 'branch',
    labels: LABELS,
  });
  const branchId = branched.trajectory!.id;
  const own = { stepNumber: 2n, reward: 5, states: [env('other')] };
  await client.trajectories.appendStep({ trajectoryId: branchId, step: own });
  await client.trajectories.sealTrajectory({
    trajectoryId: branchId,
    seal: { status: Status.COMPLETED, message: 'done' },
  });
  return { ...client, task, runId, experimentId, id: trajectoryId, uid: trajectory!.uid, branchId, put };
}

/** Appends steps by one call. */
export async function appendAll(
  { trajectories }: WireClient,
  trajectoryId: string,
  steps: readonly MessageInitShape<typeof StepSchema>[],
): Promise<void> {
  const { results } = await trajectories.appendBatch({ entries: [{ trajectoryId, steps: [...steps] }] });
  if (results[0]?.error !== undefined) throw new Error(results[0].error.message);
}

function richRoot(): Step {
  return create(StepSchema, { observations: [{ type: 'reset', content: { text: 'begin' } }] });
}
