import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { Bystander, expectRefused } from './bad_call.ts';
import { CATALOGUE, ENDS, LEASES, MAKING, READS } from './bad_rollouts.ts';
import { makeRolloutScene, type RolloutScene } from './rpcs/rollout_scene.ts';

/** Bad input for rollouts gets a clear error with the field, and stores nothing. */

describe.each(ENGINES)('bad input for rollouts, on %s', (engine) => {
  let server: TestServer;
  let scene: RolloutScene;
  let bystander: Bystander;
  let before: unknown;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    // The HTTP client of Node would give up before it has sent a body that is far too large.
    const transport = createGrpcTransport({ baseUrl: server.url, nodeOptions: { maxSessionMemory: 1000 } });
    scene = await makeRolloutScene({
      trajectories: createClient(TrajectoryService, transport),
      states: createClient(StateService, transport),
      runs: createClient(RunService, transport),
      rollouts: createClient(RolloutService, transport),
    });
    before = await picture();
    bystander = await Bystander.open(scene);
  });
  // Once for all calls: a refused call undoes nothing that an earlier one did.
  afterAll(async () => {
    await bystander.close();
    expect(await picture(), 'nothing was changed').toEqual(before);
    await server.stop();
  });

  /** All data of the scene's run. */
  async function picture(): Promise<unknown> {
    const { runs, rollouts, trajectories, runId, stageId, taskId } = scene;
    const { rollouts: all } = await rollouts.listRollouts({ runId, view: View.FULL });
    return [
      await runs.getRun({ runId }),
      await rollouts.listGroups({ stageId, view: View.FULL }),
      await Promise.all(all.map(({ id }) => rollouts.getRollout({ rolloutId: id }))),
      await Promise.all(all.map(({ id }) => runs.listStatusChanges({ rolloutId: id }))),
      await rollouts.listEnvironments({ runId }),
      await rollouts.listTasks({ category: taskId, view: View.FULL }),
      await trajectories.listTrajectories({ runId }),
    ];
  }

  it.each([...MAKING, ...CATALOGUE, ...LEASES, ...ENDS, ...READS])(
    'FM6: $what: $reason',
    async ({ call, ...wanted }) => {
      await expectRefused(call(scene), wanted);
      await bystander.goesOn();
      expect(server.counts().sessions, 'all on one connection').toBe(1);
    },
  );
});
