import { create } from '@bufbuild/protobuf';
import { WireType } from '@bufbuild/protobuf/wire';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { BadRequestSchema } from '../../gen/es/google/rpc/error_details_pb.js';

import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { AppendCall } from './append-call.ts';
import { noise, PUT_STATE, sha256 } from './samples.ts';
import {
  branchTwice,
  collect,
  createSample,
  expectStory,
  putState,
  refusal,
  type WireClient,
  type Written,
  writeOverStream,
  writeUnary,
} from './story.ts';
import { connect, GRPC_JS, WIRES, type Wire } from './wires.ts';

const BEYOND_DOUBLE = 2n ** 53n + 1n;
const NOBODY = '00000000-0000-4000-8000-000000000000';

describe.each(ENGINES)('the wire, on %s', (engine) => {
  const wires = engine === 'sqlite' ? WIRES : [GRPC_JS];
  let server: TestServer;
  const clients = new Map<Wire, WireClient>();
  const written = new Map<string, Written>();

  beforeAll(async () => {
    server = await startTestServer({ engine });
    for (const wire of wires) clients.set(wire, connect(wire, server.url));
    expect(await putState(connect(GRPC_JS, server.url), PUT_STATE)).toBe(sha256(PUT_STATE));
  });
  afterAll(() => server.stop());

  describe.each(wires.map((wire) => ({ name: wire.name, wire })))('$name', ({ name, wire }) => {
    let client: WireClient;
    beforeAll(() => {
      client = clients.get(wire)!;
    });

    // Other protocols read what each one wrote, below.
    it('O1, B1, W8: a trajectory and branches are written with unary calls', async () => {
      const story = await branchTwice(client, await writeUnary(client));
      written.set(`${name}, unary`, { ...story, asJson: wire.codec === 'JSON' });
    });

    if (wire.bidiStreams) {
      it('W1, W2, W4, W6, FM8: another writer resumes a cut stream and no step is lost', async () => {
        written.set(`${name}, stream`, await branchTwice(client, await writeOverStream(client)));
      });

      it('W1: a stream is opened by the id of its trajectory in any case of letters', async () => {
        const trajectoryId = await createSample(client);
        const open = { trajectoryId: trajectoryId.toUpperCase(), writerId: 'one' };
        const { call, opened } = await AppendCall.open(client.trajectories, open);
        expect(opened).toMatchObject({ epoch: 1n, nextStepNumber: 1n });
        await call.close();
      });

      it('W2, W3, FM6: a refusal on a stream comes after the acks of earlier steps, and says where to continue', async () => {
        const trajectoryId = await createSample(client);
        const { call } = await AppendCall.open(client.trajectories, { trajectoryId, writerId: 'one' });
        call.send({ steps: [{ stepNumber: 1n }, { stepNumber: 2n }] });
        call.send({ steps: [{ stepNumber: BEYOND_DOUBLE }] });
        expect(await call.acked(3n)).toMatchObject({ nextStepNumber: 3n });
        expect(await refusal(call.next())).toMatchObject({
          code: Code.OutOfRange,
          reason: 'STEP_GAP',
          metadata: { step_number: BEYOND_DOUBLE.toString(), next_step_number: '3' },
        });
        const other = AppendCall.open(client.trajectories, {
          trajectoryId,
          writerId: 'two',
          takeOverEpoch: BEYOND_DOUBLE,
        });
        expect(await refusal(other)).toMatchObject({
          code: Code.FailedPrecondition,
          reason: 'WRITER_FENCED',
          metadata: { writer_id: 'one', writer_epoch: '1' },
        });
      });

      it('a refused stream does not stay open for a caller that never half-closes', async () => {
        const trajectoryId = await createSample(client);
        const call = new AppendCall(client.trajectories);
        call.send({ steps: [{ stepNumber: 1n }] });
        expect(await refusal(call.next())).toMatchObject({ code: Code.InvalidArgument, reason: 'INVALID_REQUEST' });
        await expect.poll(() => server.counts(), { timeout: 10_000 }).toMatchObject({ requests: 0, handlers: 0 });
        const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
        expect(trajectory).toMatchObject({ nextStepNumber: 1n, writerEpoch: 0n });
      });

      it('W5: a stream seals with its last steps, and ends OK', async () => {
        const trajectoryId = await createSample(client);
        const { call } = await AppendCall.open(client.trajectories, { trajectoryId, writerId: 'one' });
        call.send({ steps: [{ stepNumber: 1n, reward: 3 }] });
        const sealed = await call.seal({ status: Status.FAILED, message: 'gave up – 諦めた' });
        expect(sealed).toMatchObject({ status: Status.FAILED, message: 'gave up – 諦めた', nextStepNumber: 2n });
      });
    }

    if (wire.clientStreams) {
      it('S4: a state of several chunks is stored under the SHA-256 of its bytes', async () => {
        const bytes = noise(300_000, name.length);
        expect(await putState(client, bytes)).toBe(sha256(bytes));
        const { states } = await client.states.hasStates({ digests: [sha256(bytes), '0'.repeat(64)] });
        expect(states).toMatchObject([{ digest: sha256(bytes), size: 300_000n }]);
      });
    }

    it('FM6: a refusal carries one ErrorInfo, whose numbers are exact above 2^53', async () => {
      const trajectoryId = await createSample(client);
      const { trajectories, states } = client;
      expect(await refusal(trajectories.getStep({ trajectoryId, stepNumber: BEYOND_DOUBLE }))).toMatchObject({
        code: Code.NotFound,
        reason: 'STEP_NOT_FOUND',
        metadata: { step_number: BEYOND_DOUBLE.toString(), next_step_number: '1' },
      });
      const step = { stepNumber: BEYOND_DOUBLE };
      expect(await refusal(trajectories.appendStep({ trajectoryId, step }))).toMatchObject({
        code: Code.OutOfRange,
        reason: 'STEP_GAP',
        metadata: { step_number: BEYOND_DOUBLE.toString(), next_step_number: '1' },
      });
      const conflict = { stepNumber: 0n, reward: 1 };
      expect(await refusal(trajectories.appendStep({ trajectoryId, step: conflict }))).toMatchObject({
        code: Code.AlreadyExists,
        reason: 'STEP_CONFLICT',
      });
      expect(await refusal(trajectories.getTrajectory({ trajectoryId: NOBODY }))).toMatchObject({
        code: Code.NotFound,
        reason: 'TRAJECTORY_NOT_FOUND',
        metadata: { trajectory_id: NOBODY },
      });
      expect(await refusal(collect(states.getState({ digest: '0'.repeat(64) })))).toMatchObject({
        code: Code.NotFound,
        reason: 'STATE_NOT_FOUND',
      });
    });

    it('FM6: the error of an invalid request names the field', async () => {
      const call = client.trajectories.getTrajectory({ trajectoryId: 'no-uuid' });
      const error = ConnectError.from(await call.catch((reason: unknown) => reason));
      expect(error.code).toBe(Code.InvalidArgument);
      const [violation] = error.findDetails(BadRequestSchema)[0]!.fieldViolations;
      expect(violation).toMatchObject({ field: 'trajectory_id' });
      expect(await refusal(Promise.reject(error))).toMatchObject({ reason: 'INVALID_REQUEST' });
    });

    it('RD3, FM6: a message above 1 MiB is refused with a reason, and the next call is served', async () => {
      const trajectoryId = await createSample(client);
      const step = { stepNumber: 1n, observations: [{ content: { text: 'x'.repeat(1024 * 1024) } }] };
      expect(await refusal(client.trajectories.appendStep({ trajectoryId, step }))).toMatchObject({
        code: Code.ResourceExhausted,
        reason: 'MESSAGE_TOO_LARGE',
      });
      const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
      expect(trajectory?.nextStepNumber).toBe(1n);
    });

    it('FM2: empty and missing values stay distinct', async () => {
      const trajectoryId = await createSample(client);
      const { trajectories } = client;
      const missing = trajectories.branchTrajectory({ trajectoryId });
      expect(await refusal(missing)).toMatchObject({ code: Code.InvalidArgument, reason: 'INVALID_REQUEST' });
      const { trajectory } = await trajectories.branchTrajectory({ trajectoryId, stepNumber: 0n });
      expect(trajectory).toMatchObject({ branchPoint: 0n, nextStepNumber: 1n });
      const root = (await trajectories.getTrajectory({ trajectoryId })).trajectory;
      expect(root).toMatchObject({ parentId: '' });
      expect(root?.branchPoint).toBeUndefined();
    });

    if (wire.codec === 'protobuf-es') {
      it('FM5: a step with fields that the server does not know is refused, not truncated', async () => {
        const trajectoryId = await createSample(client);
        const step = create(StepSchema, { stepNumber: 1n });
        step.$unknown = [{ no: 999, wireType: WireType.Varint, data: new Uint8Array([1]) }];
        const call = client.trajectories.appendStep({ trajectoryId, step });
        expect(await refusal(call)).toMatchObject({ code: Code.InvalidArgument, reason: 'INVALID_REQUEST' });
      });
    }
  });

  it('O1, W11: one protocol reads unchanged what every other protocol wrote', async () => {
    const streaming = wires.filter((other) => other.bidiStreams);
    expect(written.size, 'every protocol wrote').toBe(wires.length + streaming.length);
    for (const story of written.values()) await expectStory(clients.get(GRPC_JS)!, story);
  });

  it.each(wires)('O1, W11: every protocol reads unchanged what one other protocol wrote ($name)', async (wire) => {
    const other = wires[(wires.indexOf(wire) + 1) % wires.length]!;
    await expectStory(clients.get(wire)!, written.get(`${other.name}, unary`)!, wire.codec === 'JSON');
  });
});
