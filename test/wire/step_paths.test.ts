import { randomUUID } from 'node:crypto';
import type { ClientHttp2Session } from 'node:http2';
import { inspect } from 'node:util';
import { create, type DescMessage, fromBinary, type MessageInitShape } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  AppendBatchRequestSchema,
  AppendBatchResponseSchema,
  AppendStepRequestSchema,
  AppendStepsRequestSchema,
  CreateTrajectoryRequestSchema,
  ReadStepsRequestSchema,
  ReadStepsResponseSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { anyWireStep, Choices, changeMessage, encodeFrame, passedFrame } from '../support/step_frames.ts';
import { sha256 } from '../support/steps.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { envelope, http2Session, inEnvelope, openEnvelopes, rawCall } from './raw.ts';

/** A client that accepts compression takes the path of Connect, which decodes every frame. */
const BY_CONNECT = { 'grpc-encoding': 'gzip' };
const SERVICE = '/anabranch.v1.TrajectoryService';
const SEED = 14;

let server: TestServer;
let session: ClientHttp2Session;
beforeAll(async () => {
  server = await startTestServer();
  session = await http2Session(server.url);
});
afterAll(async () => {
  session.destroy();
  await server.stop();
});

describe('steps', () => {
  it('W3, W6: are stored and answered the same whether they are decoded or not', async () => {
    const steps = fc.array(anyWireStep, { minLength: 1, maxLength: 3 });
    const frames = fc
      .sample(steps, { seed: SEED, numRuns: 200 })
      .map((some) => encodeFrame(some.map((step, i) => ({ ...step, stepNumber: BigInt(i) }))));
    const passed = frames.filter((frame) => passedFrame(frame) !== undefined).slice(0, 14);
    const declined = frames.filter((frame) => passedFrame(frame) === undefined).slice(0, 8);
    const choices = new Choices(SEED);
    const sent = [
      ...passed,
      ...declined,
      ...passed.map((frame) => changeMessage(AppendStepsRequestSchema, frame, choices)),
    ];
    let stored = 0;
    for (const frame of sent) {
      const short = await append(frame, {});
      const connect = await append(frame, BY_CONNECT);
      expect(short, Buffer.from(frame).toString('hex')).toEqual(connect);
      stored += short.steps.length;
    }
    expect(stored).toBeGreaterThan(14);
  });

  it('W8, W14: of unary calls are stored and answered the same whether they are decoded or not', async () => {
    const sampled = fc
      .sample(anyWireStep, { seed: SEED, numRuns: 100 })
      .map((step): Step => ({ ...step, stepNumber: 0n }));
    const isPassed = (step: Step) => passedFrame(encodeFrame([step])) !== undefined;
    const steps = [...sampled.filter(isPassed).slice(0, 8), ...sampled.filter((step) => !isPassed(step)).slice(0, 8)];
    // Each entry has its own error: a gap, a state that is not stored, and the faults of the steps that are declined.
    const gap = create(StepSchema, { stepNumber: 7n });
    const unknownState = create(StepSchema, { observations: [{ content: { stateDigest: sha256('never put') } }] });
    const sent = [...steps, gap, unknownState];
    let stored = 0;
    for (const some of [...sent.map((step) => [step]), sent, sent.filter(isPassed)]) {
      const short = await appendUnary(some, {});
      expect(short).toEqual(await appendUnary(some, BY_CONNECT));
      stored += short.steps.length;
    }
    expect(stored).toBeGreaterThan(2 * 8);
  });
});

/** Appends steps to new trajectories: one by AppendStep, several by AppendBatch. Returns as `append`. */
async function appendUnary(steps: readonly Step[], headers: Record<string, string>) {
  const entries = steps.map((step) => ({ trajectoryId: randomUUID(), steps: [step] }));
  for (const { trajectoryId } of entries)
    await call('CreateTrajectory', CreateTrajectoryRequestSchema, { trajectoryId });
  const [{ trajectoryId }] = entries as [(typeof entries)[0]];
  const { status, reason, message, body } =
    steps.length === 1
      ? await call('AppendStep', AppendStepRequestSchema, { trajectoryId, step: steps[0]! }, headers)
      : await call('AppendBatch', AppendBatchRequestSchema, { entries }, headers);
  const read = await Promise.all(entries.map((entry) => readSteps(entry.trajectoryId, headers)));
  const results =
    steps.length === 1
      ? []
      : openEnvelopes(body).flatMap((bytes) => fromBinary(AppendBatchResponseSchema, bytes).results);
  const told = { message, results: results.map(({ uid: _, commitTime: __, ...result }) => result) };
  return {
    status,
    reason,
    told: entries.reduce((text, entry) => text.replaceAll(entry.trajectoryId, 'ID'), inspect(told, { depth: 9 })),
    steps: read.flat(),
  };
}

/** Appends a frame to a new trajectory. Returns what happened, and what is stored, as read by the same path. */
async function append(frame: Uint8Array, headers: Record<string, string>) {
  const trajectoryId = randomUUID();
  await call('CreateTrajectory', CreateTrajectoryRequestSchema, { trajectoryId });
  const open = envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } });
  const path = `${SERVICE}/AppendSteps`;
  const { status, reason, message } = await rawCall(session, path, Buffer.concat([open, inEnvelope(frame)]), headers);
  const steps = await readSteps(trajectoryId, headers);
  return { status, reason, message: message.replaceAll(trajectoryId, 'ID'), steps };
}

async function readSteps(trajectoryId: string, headers: Record<string, string>) {
  const read = await call('ReadSteps', ReadStepsRequestSchema, { trajectoryId }, headers);
  return openEnvelopes(read.body)
    .flatMap((bytes) => fromBinary(ReadStepsResponseSchema, bytes).steps)
    .map(({ commitTime: _, ...step }) => step);
}

function call<Desc extends DescMessage>(
  name: string,
  schema: Desc,
  message: MessageInitShape<Desc>,
  headers: Record<string, string> = {},
) {
  return rawCall(session, `${SERVICE}/${name}`, envelope(schema, message), headers);
}
