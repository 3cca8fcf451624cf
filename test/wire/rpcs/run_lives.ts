import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import type { RunService } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { claimOne, type LifeScene, makeEval, type RunScene } from './run_scene.ts';
import { NOBODY, type Rpcs } from './scene.ts';

const SAID = { message: 'why', metadataJson: '{"how":1}', phase: 'somewhere' };

interface Moved {
  readonly run?: { readonly id: string; readonly status: Status; readonly statusMessage: string } | undefined;
}

/**
 * A verb of a run: the status that it accepts and the one that it refuses; terminal ones conflict with another result.
 */
interface VerbCases {
  ready(scene: LifeScene): Promise<string> | string;
  readonly illegal: 'branchId' | 'bareId' | ((scene: LifeScene) => Promise<string>);
}

function verb(status: Status, of: VerbCases, more: object = {}) {
  return {
    requests: async (scene: LifeScene) => [[{ runId: await of.ready(scene), ...SAID, ...more }]],
    served: ([answer]: Moved[]) => {
      expect(answer?.run).toMatchObject({ status, statusMessage: 'why', phase: 'somewhere' });
    },
    refused: (scene: LifeScene) => {
      const { illegal } = of;
      return {
        RUN_NOT_FOUND: [{ runId: NOBODY }],
        ILLEGAL_TRANSITION:
          typeof illegal === 'string' ? [{ runId: scene[illegal] }] : async () => [{ runId: await illegal(scene) }],
      };
    },
  };
}

/** A terminal verb, which refuses a repetition with another result. */
function ending(
  status: Status,
  of: Parameters<typeof verb>[1] & { again(scene: LifeScene): Promise<string> | string },
  more: object = {},
) {
  const plain = verb(status, of, { keepTrajectoryOpen: true, ...more });
  return {
    ...plain,
    refused: (scene: LifeScene) => ({
      ...plain.refused(scene),
      RESULT_CONFLICT: async () => [{ runId: await of.again(scene), message: 'for another reason' }],
    }),
  };
}

export const RUN_LIFE_RPCS = {
  startRun: verb(Status.RUNNING, { ready: ({ bareId }) => bareId, illegal: 'branchId' }),
  pauseRun: verb(Status.PAUSED, { ready: ({ runId }) => runId, illegal: 'bareId' }),
  resumeRun: verb(Status.RUNNING, {
    ready: async ({ runId, runs }) => {
      await runs.pauseRun({ runId });
      return runId;
    },
    illegal: 'bareId',
  }),
  completeRun: {
    ...ending(Status.COMPLETED, {
      ready: ({ runId }) => runId,
      again: ({ branchId }) => branchId,
      illegal: async ({ bareId, runs }) => {
        await runs.cancelRun({ runId: bareId });
        return bareId;
      },
    }),
    requests: ({ runId }) => [[{ runId, ...SAID, resultJson: '{"score":1}', keepTrajectoryOpen: true }]],
    served: ([answer], { runId }) => {
      expect(answer?.run).toMatchObject({
        id: runId,
        status: Status.COMPLETED,
        resultJson: '{"score":1}',
        rewardSum: 6,
      });
      expect(answer?.run?.endTime).toBeDefined();
    },
  },
  failRun: ending(Status.FAILED, {
    ready: ({ runId }) => runId,
    again: async ({ bareId, runs }) => {
      await runs.failRun({ runId: bareId, message: 'for one reason' });
      return bareId;
    },
    illegal: 'branchId',
  }),
  cancelRun: {
    ...ending(
      Status.CANCELLED,
      {
        ready: async (scene) => {
          await claimOne(scene, await makeEval(scene, scene.runId));
          return scene.runId;
        },
        again: async ({ bareId, runs }) => {
          await runs.cancelRun({ runId: bareId, message: 'for one reason' });
          return bareId;
        },
        illegal: 'branchId',
      },
      { cancelRollouts: true },
    ),
    served: ([answer]) => {
      expect(answer).toMatchObject({ run: { status: Status.CANCELLED, statusMessage: 'why' }, cancelledRollouts: 1n });
    },
  },
  reopenRun: {
    ...verb(Status.RUNNING, { ready: ({ branchId }) => branchId, illegal: 'bareId' }),
    served: ([answer], { branchId }) => {
      const now = { id: branchId, status: Status.RUNNING, statusMessage: 'why', resultJson: '' };
      expect(answer?.run).toMatchObject(now);
      expect(answer?.mainTrajectoryId).toBe(answer?.run?.mainTrajectoryId);
      expect(answer?.run?.endTime).toBeUndefined();
    },
  },
  heartbeatRun: {
    requests: ({ runId }) => [[{ runId }]],
    served: ([answer]) => {
      expect(answer).toMatchObject({ status: Status.RUNNING, statusMessage: '' });
      expect(answer?.heartbeatTime).toBeDefined();
    },
    refused: () => ({ RUN_NOT_FOUND: [{ runId: NOBODY }] }),
  },
  listStatusChanges: {
    requests: async (scene) => {
      const { runId, branchId, mainId, runs, rollouts } = scene;
      const evalId = await makeEval(scene, runId);
      const rolloutId = await claimOne(scene, evalId);
      const environmentId = randomUUID();
      await rollouts.upsertEnvironment({ runId, environmentId });
      const first = await runs.listStatusChanges({ runId: branchId, ascending: true, pageSize: 1 });
      expect(first.changes).toMatchObject([{ ordinal: 0n, oldStatus: 0, newStatus: Status.RUNNING }]);
      return [
        [{ runId }],
        [{ stageId: evalId }],
        [{ trajectoryId: mainId }],
        [{ rolloutId }],
        [{ environmentId }],
        [{ runId: branchId, ascending: true, pageSize: 1, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer]) => {
      const move = { ordinal: 1n, oldStatus: Status.RUNNING, newStatus: Status.COMPLETED, message: 'done' };
      expect(answer?.changes).toMatchObject([{ ...move, actor: 'anonymous', progressPercent: 100 }]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ runId }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      STAGE_NOT_FOUND: [{ stageId: NOBODY }],
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY }],
      ENVIRONMENT_NOT_FOUND: [{ environmentId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ runId, pageToken: 'none' }],
    }),
  },
} satisfies Partial<Rpcs<typeof RunService.method, LifeScene, RunScene>>;
