import { randomUUID } from 'node:crypto';
import type { ClientHttp2Session } from 'node:http2';
import { type DescMessage, fromBinary, type MessageInitShape } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  AppendStepsRequestSchema,
  CreateTrajectoryRequestSchema,
  ReadStepsRequestSchema,
  ReadStepsResponseSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { anyWireStep, Choices, changeFrame, encodeFrame, passedFrame } from '../support/step_frames.ts';
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

describe('frames of steps', () => {
  it('W3, W6: are stored and answered the same whether they are decoded or not', async () => {
    const steps = fc.array(anyWireStep, { minLength: 1, maxLength: 3 });
    const frames = fc
      .sample(steps, { seed: SEED, numRuns: 1000 })
      .map((some) => encodeFrame(some.map((step, i) => ({ ...step, stepNumber: BigInt(i) }))));
    const passed = frames.filter((frame) => passedFrame(frame) !== undefined).slice(0, 14);
    const declined = frames.filter((frame) => passedFrame(frame) === undefined).slice(0, 8);
    const choices = new Choices(SEED);
    const sent = [...passed, ...declined, ...passed.map((frame) => changeFrame(frame, choices))];
    let stored = 0;
    for (const frame of sent) {
      const short = await append(frame, {});
      const connect = await append(frame, BY_CONNECT);
      expect(short, Buffer.from(frame).toString('hex')).toEqual(connect);
      stored += short.steps.length;
    }
    expect(stored).toBeGreaterThan(14);
  });
});

/** Appends a frame to a new trajectory. Returns what happened, and what is stored, as read by the same path. */
async function append(frame: Uint8Array, headers: Record<string, string>) {
  const trajectoryId = randomUUID();
  await call('CreateTrajectory', CreateTrajectoryRequestSchema, { trajectoryId });
  const open = envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } });
  const path = `${SERVICE}/AppendSteps`;
  const { status, reason, message } = await rawCall(session, path, Buffer.concat([open, inEnvelope(frame)]), headers);
  const read = await call('ReadSteps', ReadStepsRequestSchema, { trajectoryId }, headers);
  const steps = openEnvelopes(read.body)
    .flatMap((bytes) => fromBinary(ReadStepsResponseSchema, bytes).steps)
    .map(({ commitTime: _, ...step }) => step);
  return { status, reason, message: message.replaceAll(trajectoryId, 'ID'), steps };
}

function call<Desc extends DescMessage>(
  name: string,
  schema: Desc,
  message: MessageInitShape<Desc>,
  headers: Record<string, string> = {},
) {
  return rawCall(session, `${SERVICE}/${name}`, envelope(schema, message), headers);
}
