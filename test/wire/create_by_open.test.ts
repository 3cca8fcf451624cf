import { randomUUID } from 'node:crypto';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { AppendCall } from './append-call.ts';

describe.each(ENGINES)('AppendSteps with create, on %s', (engine) => {
  let server: TestServer;
  const trajectories = () => createClient(TrajectoryService, createGrpcTransport({ baseUrl: server.url }));
  beforeAll(async () => {
    server = await startTestServer({ engine });
  });
  afterAll(() => server.stop());

  it('W1: open, steps and seal can be sent at once, in one round trip, and again', async () => {
    const trajectoryId = randomUUID();
    const create = { trajectory: { trajectoryId, requestId: randomUUID(), name: 'at once' } };
    const send = async () => {
      const call = new AppendCall(trajectories());
      call.send({ open: { trajectoryId, writerId: 'w', create } });
      call.send({ steps: [{ stepNumber: 0n }, { stepNumber: 1n, reward: 1 }] });
      call.send({ seal: { status: Status.COMPLETED, message: 'done' } });
      const answers = [await call.next(), await call.acked(2n), await call.next()];
      await call.close();
      return answers;
    };
    expect(await send()).toMatchObject([
      { opened: { epoch: 1n, nextStepNumber: 0n } },
      { nextStepNumber: 2n, duplicateSteps: 0n },
      { sealed: { status: Status.COMPLETED, nextStepNumber: 2n } },
    ]);
    expect(await send()).toMatchObject([
      { opened: { epoch: 2n, nextStepNumber: 2n, status: Status.COMPLETED } },
      { nextStepNumber: 2n, duplicateSteps: 2n },
      { sealed: { status: Status.COMPLETED, message: 'done' } },
    ]);
  });

  it('W1: a request that differs in any field is TRAJECTORY_EXISTS; one with another request id is not', async () => {
    const made = { trajectoryId: randomUUID(), name: 'n', taskId: 't', labels: { a: '1' }, root: { reward: 1 } };
    const open = (fields: object) => {
      const { trajectoryId } = made;
      const trajectory = { ...made, requestId: randomUUID(), ...fields };
      return AppendCall.open(trajectories(), { trajectoryId, writerId: 'w', create: { trajectory } });
    };
    expect((await open({})).opened).toMatchObject({ epoch: 1n, nextStepNumber: 1n });
    for (const fields of [{ name: 'm' }, { taskId: '' }, { labels: { a: '2' } }, { root: { reward: 2 } }]) {
      expect(await open(fields).catch(reasonOf)).toBe('TRAJECTORY_EXISTS');
    }
    expect((await open({})).opened.epoch).toBe(2n);
  });

  it('W1: a trajectory that CreateTrajectory or BranchTrajectory created is opened with their request', async () => {
    const client = trajectories();
    const root = { trajectoryId: randomUUID(), root: {}, name: 'main' };
    await client.createTrajectory(root);
    const branch = { trajectoryId: root.trajectoryId, stepNumber: 0n, branchId: randomUUID(), requestId: 'b' };
    await client.branchTrajectory(branch);
    const opens = [
      { trajectoryId: root.trajectoryId, create: { trajectory: { ...root, requestId: 'a' } } },
      { trajectoryId: branch.branchId, create: { branch } },
    ];
    for (const open of opens) {
      const { opened } = await AppendCall.open(client, { ...open, writerId: 'w' });
      expect(opened).toMatchObject({ epoch: 1n, nextStepNumber: 1n });
    }
  });
});
