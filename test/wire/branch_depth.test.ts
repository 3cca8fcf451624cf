import { Code, ConnectError, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { describe, expect, it } from 'vitest';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { outsideSql } from '../store/sql.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer } from '../support/test-server.ts';

describe.each(ENGINES)('branches that would be too deep, on %s', (engine) => {
  it('B1: are refused as BRANCH_TOO_DEEP, with the owner of the branch point and its depth', async () => {
    await using server = await startTestServer({ engine });
    const transport = createGrpcTransport({ baseUrl: server.url });
    const [trajectories, runs] = [createClient(TrajectoryService, transport), createClient(RunService, transport)];
    const { run, mainTrajectory } = await runs.createRun({
      name: 'deep',
      mainTrajectory: { taskId: 'deep', root: { reward: 1 } },
    });
    const trajectoryId = mainTrajectory!.id;
    const sql = await outsideSql(server.database);
    await sql.rows(`update trajectories set depth = ${LIMITS.branchDepth} where id = '${trajectoryId}'`);
    await sql.close();
    const info = {
      reason: 'BRANCH_TOO_DEEP',
      metadata: { trajectory_id: trajectoryId, depth: `${LIMITS.branchDepth}` },
    };
    for (const call of [
      () => trajectories.branchTrajectory({ trajectoryId, stepNumber: 0n }),
      () => trajectories.branchTrajectories({ taskId: 'deep', branchTaskId: 'deeper', requestId: 'deep' }),
      () => runs.branchRun({ runId: run!.id, stepNumber: 0n }),
    ]) {
      const error = await call().then(
        () => undefined,
        (thrown: unknown) => ConnectError.from(thrown),
      );
      expect(error?.code).toBe(Code.FailedPrecondition);
      expect(error?.findDetails(ErrorInfoSchema)).toMatchObject([info]);
    }
  });
});
