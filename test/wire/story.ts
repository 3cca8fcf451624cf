import { randomUUID } from 'node:crypto';
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { Client } from '@connectrpc/connect';
import { Code, ConnectError } from '@connectrpc/connect';
import { expect } from 'vitest';
import type { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import type { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { GetStateRequestSchema, StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { AppendCall } from './append-call.ts';
import {
  asRead,
  branchSteps,
  INLINE_STATE,
  leafSteps,
  PUT_STATE,
  sampleSteps,
  sha256,
  withoutServerFields,
} from './samples.ts';

export interface WireClient {
  readonly trajectories: Client<typeof TrajectoryService>;
  readonly states: Client<typeof StateService>;
  readonly runs: Client<typeof RunService>;
  readonly rollouts: Client<typeof RolloutService>;
}

/** A trajectory of sample steps, a branch of it at step 3, and a branch of that at step 4. */
export interface Written {
  readonly trajectoryId: string;
  readonly branchId: string;
  readonly leafId: string;
  /** It was sent as JSON, which writes -0 as 0. */
  readonly asJson?: boolean;
}

export const DESCRIPTION = {
  name: 'sample – 例',
  taskId: 'wire/1',
  labels: { 'key ü': 'välue', empty: '' },
  metadataJson: '{"a": 1, "big":9007199254740993}',
};

export async function putState(client: WireClient, bytes: Uint8Array): Promise<string> {
  async function* chunks() {
    yield { digest: sha256(bytes) };
    for (let i = 0; i < bytes.length; i += 256 * 1024) yield { chunk: bytes.subarray(i, i + 256 * 1024) };
  }
  const { state } = await client.states.putState(chunks());
  return state!.digest;
}

export async function createSample(client: WireClient): Promise<string> {
  const request = { ...DESCRIPTION, requestId: randomUUID(), root: sampleSteps()[0]! };
  const { trajectory } = await client.trajectories.createTrajectory(request);
  const again = await client.trajectories.createTrajectory(request);
  expect(again.trajectory).toEqual(trajectory);
  expect(trajectory?.nextStepNumber).toBe(1n);
  return trajectory!.id;
}

/**
 * Writes the samples over a stream that is cut with unacked steps and resumed by another writer, as a restarted raw
 * client does (FM8).
 */
export async function writeOverStream(client: WireClient): Promise<string> {
  const trajectoryId = await createSample(client);
  const steps = sampleSteps();
  const first = await AppendCall.open(client.trajectories, { trajectoryId, writerId: randomUUID() });
  expect(first.opened).toMatchObject({ epoch: 1n, nextStepNumber: 1n, status: Status.RUNNING });
  expect(await first.call.append(steps.slice(1, 3))).toMatchObject({ nextStepNumber: 3n, duplicateSteps: 0n });
  for (const step of steps.slice(3, 5)) first.call.send({ steps: [step] });
  await first.call.cut();

  const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
  expect(trajectory?.writerEpoch).toBe(1n);
  const writerId = randomUUID();
  const refused = await refusal(AppendCall.open(client.trajectories, { trajectoryId, writerId }));
  expect(refused).toMatchObject({
    code: Code.FailedPrecondition,
    reason: 'WRITER_FENCED',
    metadata: { writer_epoch: '1' },
  });
  const { call, opened } = await AppendCall.open(client.trajectories, {
    trajectoryId,
    writerId,
    uid: trajectory!.uid,
    takeOverEpoch: trajectory!.writerEpoch,
  });
  expect(opened.epoch).toBe(2n);
  const ack = await call.append(steps.slice(3));
  expect(ack).toMatchObject({ nextStepNumber: 7n, duplicateSteps: opened.nextStepNumber - 3n });
  await call.close();
  return trajectoryId;
}

/** Writes the samples without a stream, for protocols that support none. */
export async function writeUnary(client: WireClient): Promise<string> {
  const trajectoryId = await createSample(client);
  for (const step of sampleSteps().slice(1)) {
    const { nextStepNumber, duplicate } = await client.trajectories.appendStep({ trajectoryId, step });
    expect({ nextStepNumber, duplicate }).toEqual({ nextStepNumber: step.stepNumber + 1n, duplicate: false });
    const again = await client.trajectories.appendStep({ trajectoryId, step });
    expect(again).toMatchObject({ nextStepNumber: step.stepNumber + 1n, duplicate: true });
  }
  return trajectoryId;
}

export async function branchTwice(client: WireClient, trajectoryId: string): Promise<Written> {
  const branch = await client.trajectories.branchTrajectory({ trajectoryId, stepNumber: 3n, name: 'branch' });
  const branchId = branch.trajectory!.id;
  expect(branch.trajectory).toMatchObject({ parentId: trajectoryId, branchPoint: 3n, nextStepNumber: 4n });
  for (const step of branchSteps()) await client.trajectories.appendStep({ trajectoryId: branchId, step });
  await client.trajectories.sealTrajectory({
    trajectoryId: branchId,
    seal: { status: Status.COMPLETED, message: 'done' },
  });
  const leaf = await client.trajectories.branchTrajectory({ trajectoryId: branchId, stepNumber: 4n, name: 'leaf' });
  const leafId = leaf.trajectory!.id;
  for (const step of leafSteps()) await client.trajectories.appendStep({ trajectoryId: leafId, step });
  return { trajectoryId, branchId, leafId };
}

/**
 * Reads everything that was written, through any client, and compares it with the samples. `asJson`: it is read as
 * JSON.
 */
export async function expectStory(client: WireClient, written: Written, asJson = false): Promise<void> {
  const { trajectoryId, branchId, leafId } = written;
  const own = asJson || written.asJson ? sampleSteps().map(withoutNegativeZeros) : sampleSteps();
  const shared = own.slice(0, 4).map((step) => ({ owner: trajectoryId, step }));
  const onBranch = branchSteps().map((step) => ({ owner: branchId, step }));
  await expectSteps(
    client,
    trajectoryId,
    own.map((step) => ({ owner: trajectoryId, step })),
  );
  await expectSteps(client, branchId, [...shared, ...onBranch]);
  await expectSteps(client, leafId, [
    ...shared,
    ...onBranch.slice(0, 1),
    ...leafSteps().map((step) => ({ owner: leafId, step })),
  ]);
  await expectStates(client, written);
  const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
  expect(trajectory).toMatchObject({ id: trajectoryId, ...DESCRIPTION, nextStepNumber: 7n, status: Status.RUNNING });
}

function withoutNegativeZeros(step: Step): Step {
  for (const [key, value] of Object.entries(step.metrics)) if (Object.is(value, -0)) step.metrics[key] = 0;
  return step;
}

async function expectSteps(client: WireClient, trajectoryId: string, expected: { owner: string; step: Step }[]) {
  const read: { owner: string; step: Step }[] = [];
  for await (const message of client.trajectories.readSteps({ trajectoryId })) {
    for (const step of message.steps) read.push({ owner: message.trajectoryId, step: withoutServerFields(step) });
  }
  expect(read).toEqual(expected.map(({ owner, step }) => ({ owner, step: asRead(step) })));
}

async function expectStates(client: WireClient, { trajectoryId, leafId }: Written): Promise<void> {
  const checkpoint = await client.trajectories.getCheckpoint({ trajectoryId, atOrBefore: 5n });
  const states = checkpoint.step!.states.map(({ name, data, size }) => [name, data && sha256(data), size]);
  expect(states).toEqual([
    ['env', sha256(new Uint8Array()), 0n],
    ['memory', sha256(INLINE_STATE), BigInt(INLINE_STATE.length)],
    ['put', undefined, BigInt(PUT_STATE.length)],
  ]);

  const digest = sha256(PUT_STATE);
  expect(sha256(await getState(client, { digest }))).toBe(digest);
  const reference = { trajectoryId, stepNumber: checkpoint.step!.stepNumber, name: 'put' };
  const range = await getState(client, { reference, offset: 300_001n, length: 300_000n });
  expect(sha256(range)).toBe(sha256(PUT_STATE.subarray(300_001, 600_001)));

  const sequence: [string, bigint, string][] = [];
  for await (const { trajectoryId: owner, pieces } of client.states.readStates({ range: { trajectoryId: leafId } })) {
    for (const piece of pieces) sequence.push([owner, piece.stepNumber, new TextDecoder().decode(piece.data)]);
  }
  expect(sequence.map(([, number, text]) => [number, text])).toEqual([
    [1n, 'état 1'],
    [4n, 'branch 4'],
    [5n, 'leaf 5'],
  ]);
  expect(new Set(sequence.map(([owner]) => owner)).size).toBe(3);
}

async function getState(client: WireClient, request: MessageInitShape<typeof GetStateRequestSchema>) {
  const chunks: Uint8Array[] = [];
  for await (const { chunk } of client.states.getState(request)) chunks.push(chunk);
  return new Uint8Array(Buffer.concat(chunks));
}

export async function collect<T>(stream: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of stream) items.push(item);
  return items;
}

/** The structured error of a refused call. */
export async function refusal(call: Promise<unknown>) {
  const error = await call.then(
    () => undefined,
    (reason: unknown) => ConnectError.from(reason),
  );
  if (error === undefined) throw new Error('the call was expected to be refused, and succeeded');
  const infos = error.findDetails(ErrorInfoSchema);
  expect(infos, `${error.message} carries one ErrorInfo`).toHaveLength(1);
  const { reason, domain, metadata } = infos[0]!;
  expect(domain).toBe('anabranch.v1');
  return { code: error.code, message: error.rawMessage, reason, metadata };
}
