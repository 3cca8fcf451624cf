import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

describe.each(ENGINES)('branches of runs, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it('start RUNNING, unless initial_status is set', async () => {
    const { run } = await client.runs.createRun({ mainTrajectory: { root: {} } });
    expect(run).toMatchObject({ status: Status.PENDING });
    const branchOff = async (initialStatus?: Status) => {
      const more = initialStatus === undefined ? {} : { initialStatus };
      return (await client.runs.branchRun({ runId: run!.id, stepNumber: 0n, ...more })).run;
    };
    const running = await branchOff();
    expect(running?.status).toBe(Status.RUNNING);
    expect(running?.startTime).toBeDefined();
    for (const status of [Status.PENDING, Status.INITIALIZING, Status.RUNNING])
      expect((await branchOff(status))?.status).toBe(status);
  });

  it('replace the main trajectory of a reopened run, and its writers continue on the branch', async () => {
    const { run, mainTrajectory } = await client.runs.createRun({ mainTrajectory: { root: {} } });
    const runId = run!.id;
    await client.runs.completeRun({ runId });
    const step = { stepNumber: 1n, reward: 1 };
    const append = (trajectoryId: string) => client.trajectories.appendStep({ trajectoryId, step });
    await expect(append(mainTrajectory!.id)).rejects.toThrow('sealed');
    const { mainTrajectoryId } = await client.runs.reopenRun({ runId });
    expect(mainTrajectoryId).not.toBe(mainTrajectory!.id);
    await append(mainTrajectoryId);
    expect((await client.runs.getRun({ runId })).run).toMatchObject({ mainTrajectoryId, nextStepNumber: 2n });
  });
});
