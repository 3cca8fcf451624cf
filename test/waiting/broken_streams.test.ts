import { randomUUID } from 'node:crypto';
import type { ClientHttp2Session } from 'node:http2';
import { fromBinary } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  AppendStepsRequestSchema,
  AppendStepsResponseSchema,
  CreateTrajectoryRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { envelope, http2Session, openEnvelopes, RawCall, rawCall, until } from '../wire/raw.ts';

const SERVICE = '/anabranch.v1.TrajectoryService';
const APPEND = `${SERVICE}/AppendSteps`;

const open = (trajectoryId: string) => envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } });
const stepFrame = (number: bigint) =>
  envelope(AppendStepsRequestSchema, { steps: [{ stepNumber: number, observations: [{ content: { text: 'x' } }] }] });

function lastAck(body: Buffer): bigint | undefined {
  const answers = openEnvelopes(body).map((bytes) => fromBinary(AppendStepsResponseSchema, bytes));
  return answers.findLast(({ ack }) => ack !== undefined)?.ack?.nextStepNumber;
}

describe.each(ENGINES)('W2, W4: streams that break off, on %s', (engine) => {
  let server: TestServer;
  let session: ClientHttp2Session;

  beforeAll(async () => {
    server = await startTestServer({ engine });
  });
  afterAll(() => server.stop());
  beforeEach(async () => {
    session = await http2Session(server.url);
  });
  afterEach(async () => {
    session.destroy();
    await until(() => Object.values(server.counts()).every((count) => count === 0), 'nothing is open');
  });

  async function newTrajectory(): Promise<string> {
    const trajectoryId = randomUUID();
    const request = envelope(CreateTrajectoryRequestSchema, { trajectoryId });
    expect((await rawCall(session, `${SERVICE}/CreateTrajectory`, request)).status).toBe(0);
    return trajectoryId;
  }

  async function endOf(trajectoryId: string): Promise<bigint> {
    const client = connectClient({ address: server.url });
    const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
    client.close();
    return trajectory!.nextStepNumber;
  }

  it('after a disconnect in mid-frame, complete frames are stored and the rest is dropped', async () => {
    const trajectoryId = await newTrajectory();
    const call = new RawCall(session, APPEND);
    call.stream.write(open(trajectoryId));
    await call.messages(1);
    call.stream.write(Buffer.concat([stepFrame(0n), stepFrame(1n), stepFrame(2n).subarray(0, 9)]));
    await until(() => lastAck(call.body) === 2n, 'both whole frames are acked');
    session.destroy();
    await until(() => server.counts().handlers === 0, 'the handler has ended');
    session = await http2Session(server.url);
    expect(await endOf(trajectoryId)).toBe(2n);
  });

  it('after a half-close in mid-frame the same holds, and the client gets an error', async () => {
    const trajectoryId = await newTrajectory();
    const outcome = await rawCall(
      session,
      APPEND,
      Buffer.concat([open(trajectoryId), stepFrame(0n), stepFrame(1n).subarray(0, 9)]),
    );
    expect(outcome).toMatchObject({
      status: 3,
      reason: 'INVALID_REQUEST',
      message: expect.stringContaining('incomplete'),
    });
    expect(lastAck(outcome.body)).toBe(1n);
    expect(await endOf(trajectoryId)).toBe(1n);
  });

  it('after its deadline the stream ends, its acked steps are stored, and other streams continue', async () => {
    const [trajectoryId, neighbourId] = [await newTrajectory(), await newTrajectory()];
    const neighbour = new RawCall(session, APPEND);
    neighbour.stream.write(open(neighbourId));
    await neighbour.messages(1);
    const call = new RawCall(session, APPEND, { 'grpc-timeout': '2S' });
    call.stream.write(Buffer.concat([open(trajectoryId), stepFrame(0n)]));
    const outcome = await call.outcome;
    expect(outcome).toMatchObject({ status: 4, reason: 'DEADLINE_EXCEEDED' });
    expect(lastAck(outcome.body)).toBe(1n);
    expect(await endOf(trajectoryId)).toBe(1n);
    neighbour.stream.end(stepFrame(0n));
    expect(await neighbour.outcome).toMatchObject({ status: 0 });
    expect(await endOf(neighbourId)).toBe(1n);
  });

  it('a follower whose deadline passes gets DEADLINE_EXCEEDED', async () => {
    const trajectoryId = await newTrajectory();
    const client = connectClient({ address: server.url });
    const reading = async () => {
      for await (const _ of client.trajectories.readSteps({ trajectoryId, follow: true }, { timeoutMs: 300 }));
    };
    await expect(reading()).rejects.toThrow(/deadline/i);
    client.close();
  });
});
