import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { type RunService, UpdateRunRequestSchema } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { IfExists, ListOrder, View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { EXPERIMENT_RPCS } from './experiments.ts';
import { METRIC_RPCS } from './metrics.ts';
import { RUN_LIFE_RPCS } from './run_lives.ts';
import { claimOne, type LifeScene, PLAN, type RunScene } from './run_scene.ts';
import { bytes, LABELS, LATE, LONG_AGO, NO_STATE, NOBODY, type Rpcs, richStep } from './scene.ts';
import { pathsOf } from './shown.ts';
import { STAGE_RPCS } from './stages.ts';
import { SUMMARY_RPCS } from './summaries.ts';

/** Fields that a root and a branch share, except the config. */
const MAKING = {
  description: 'a try',
  labels: LABELS,
  metadataJson: '[2]',
  plan: PLAN,
  initialStatus: Status.INITIALIZING,
  heartbeatTimeout: { seconds: 90n, nanos: 1_000_000 },
  failWhenStale: true,
};

const MADE = { ...MAKING, number: 4n, status: Status.INITIALIZING, stale: false, revision: expect.any(BigInt) };

function withoutInitialStatus<T extends { initialStatus: unknown }>({ initialStatus: _, ...rest }: T) {
  return rest;
}

export const RUN_MAKING_RPCS = {
  createRun: {
    requests: ({ experimentId, experimentName }) => [
      [
        {
          ...MAKING,
          runId: randomUUID(),
          requestId: randomUUID(),
          experimentName,
          name: 'made',
          ifExists: IfExists.RETURN_EXISTING,
          configJson: '{ "lr": null, "steps": 9007199254740993 }',
          removedConfigPaths: ['/seed'],
          mainTrajectory: { trajectoryId: randomUUID(), taskId: 'task', root: { ...richStep(1n), stepNumber: 0n } },
        },
      ],
      [{ experimentId, name: 'made', ifExists: IfExists.RETURN_EXISTING }],
    ],
    served: ([answer], { experimentId, experimentName }) => {
      const config = {
        configJson: '{"lr":null,"steps":9007199254740993}',
        removedConfigPaths: ['/seed'],
        configOverridesJson: '{ "lr": null, "steps": 9007199254740993 }',
      };
      const made = { ...withoutInitialStatus(MADE), ...config, experimentId, experimentName, name: 'made' };
      expect(answer?.run).toMatchObject({ ...made, nextStepNumber: 1n, rewardSum: 0.5 });
      expect(answer?.run?.treeId).toBe(answer?.run?.id);
      expect(answer?.created).toBe(false);
      const main = { id: answer?.run?.mainTrajectoryId, name: 'made', labels: LABELS, taskId: 'task' };
      expect(answer?.mainTrajectory).toMatchObject({
        ...main,
        runId: answer?.run?.id,
        experimentId,
        nextStepNumber: 1n,
      });
      expect(answer?.resumeStage).toBeUndefined();
    },
    refused: ({ experimentId, mainId, runs }) => {
      const main = { experimentId, name: 'main' };
      const root = (state: { data?: Uint8Array; digest: string }) => [
        { experimentId, mainTrajectory: { root: { states: [state] } } },
      ];
      return {
        EXPERIMENT_NOT_FOUND: [{ experimentId: NOBODY }],
        RUN_EXISTS: [main],
        CONFIG_MISMATCH: [{ ...main, ifExists: IfExists.RETURN_EXISTING, configJson: '{"seed":3}' }],
        TRAJECTORY_EXISTS: [{ experimentId, mainTrajectory: { trajectoryId: mainId } }],
        STATE_NOT_FOUND: root({ digest: NO_STATE }),
        DIGEST_MISMATCH: root({ data: bytes('x'), digest: NO_STATE }),
        REQUEST_ID_REUSED: async () => {
          const requestId = randomUUID();
          await runs.createRun({ experimentId, requestId });
          return [{ experimentId, requestId, name: 'another' }];
        },
        RUN_NOT_FOUND: async () => {
          const request = { experimentId, requestId: randomUUID() };
          const { run } = await runs.createRun(request);
          await runs.deleteRun({ runId: run!.id });
          return [request];
        },
      };
    },
  },
  branchRun: {
    requests: ({ runId }) => [
      [{ runId, tag: 'here', name: 'by tag' }],
      [
        {
          ...MAKING,
          runId,
          stepNumber: 2n,
          branchId: randomUUID(),
          branchTrajectoryId: randomUUID(),
          requestId: randomUUID(),
          name: `new branch ${randomUUID()}`,
          configOverridesJson: '{"lr":null}',
          removedConfigPaths: ['/seed'],
        },
      ],
    ],
    served: ([answer], { runId, mainId, experimentId }) => {
      const made = { ...withoutInitialStatus(MADE), number: 5n, parentId: runId, treeId: runId };
      const config = {
        configJson: '{"lr":null}',
        configOverridesJson: '{"lr":null}',
        removedConfigPaths: ['/seed'],
      };
      expect(answer?.run).toMatchObject({ ...made, ...config, branchPoint: 2n, nextStepNumber: 3n, rewardSum: 3 });
      expect(answer?.run?.name).toMatch(/^new branch /);
      const main = { id: answer?.run?.mainTrajectoryId, parentId: mainId, branchPoint: 2n, runId: answer?.run?.id };
      expect(answer?.mainTrajectory).toMatchObject({ ...main, experimentId, nextStepNumber: 3n });
    },
    refused: ({ runId, bareId, mainId, runs }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY, stepNumber: 0n }],
      NO_MAIN_TRAJECTORY: [{ runId: bareId, stepNumber: 0n }],
      TAG_NOT_FOUND: [{ runId, tag: 'nowhere' }],
      BRANCH_POINT_BEYOND_END: [{ runId, stepNumber: 4n }],
      RUN_EXISTS: [{ runId, stepNumber: 0n, name: 'branch' }],
      TRAJECTORY_EXISTS: [{ runId, stepNumber: 0n, branchTrajectoryId: mainId }],
      REQUEST_ID_REUSED: async () => {
        const requestId = randomUUID();
        await runs.branchRun({ runId, stepNumber: 0n, requestId });
        return [{ runId, stepNumber: 1n, requestId }];
      },
    }),
  },
  updateRun: {
    requests: ({ runId }) => [
      [
        {
          ...withoutInitialStatus(MAKING),
          runId,
          updateMask: { paths: pathsOf(UpdateRunRequestSchema) },
          name: 'renamed',
          labels: { other: '1' },
          plan: { concurrency: 2 },
          statusMessage: 'going well',
          phase: 'rollout',
          metrics: { score: Number.NaN },
        },
      ],
    ],
    served: ([answer], { runId }) => {
      const now = { ...withoutInitialStatus(MAKING), id: runId, name: 'renamed', labels: { other: '1' } };
      const said = { statusMessage: 'going well', phase: 'rollout', metrics: { score: Number.NaN } };
      expect(answer?.run).toMatchObject({ ...now, ...said, plan: { stagePlans: [], concurrency: 2 } });
      expect(answer?.run?.status).toBe(Status.RUNNING);
    },
    refused: ({ runId }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY, updateMask: { paths: ['phase'] } }],
      RUN_EXISTS: [{ runId, updateMask: { paths: ['name'] }, name: 'bare' }],
    }),
  },
} satisfies Partial<Rpcs<typeof RunService.method, LifeScene, RunScene>>;

export const RUN_RPCS: Rpcs<typeof RunService.method, RunScene> = {
  ...RUN_MAKING_RPCS,
  ...EXPERIMENT_RPCS,
  ...RUN_LIFE_RPCS,
  ...STAGE_RPCS,
  ...METRIC_RPCS,
  ...SUMMARY_RPCS,
  getRun: {
    requests: ({ runId, experimentName }) => [
      [{ runId, view: View.BASIC }],
      [{ runName: 'main', experimentName, progress: true }],
    ],
    served: ([answer], { runId, experimentId, experimentName, mainId, evalId, baselineId }) => {
      const place = { id: runId, number: 1n, experimentId, experimentName, name: 'main', mainTrajectoryId: mainId };
      const config = { configJson: '{"lr":0.1,"seed":2}', configOverridesJson: '{"seed":2}' };
      const counted = { nextStepNumber: 4n, rewardSum: 6, metadataJson: '{"by":"test"}', plan: PLAN };
      expect(answer?.run).toMatchObject({ ...place, ...config, ...counted, status: Status.RUNNING });
      expect(answer?.run?.branchPoint).toBeUndefined();
      const kinds = [
        { kind: StageKind.TRAIN_STEP, planned: 4n, created: 1n, open: 0n, completed: 1n },
        { kind: StageKind.EVAL, planned: 0n, created: 1n, open: 1n },
        { kind: StageKind.BASELINE, planned: 0n, created: 1n, open: 0n },
      ];
      // A plan of three stages, with 2 groups of 3 rollouts of at most 5 turns, and with 6 substeps.
      const turns = { turnsDone: 0n, turnsExpected: 90n, substepsDone: 6n, substepsExpected: 24n };
      expect(answer?.progress).toMatchObject({ ...turns, percent: 0, kinds });
      expect(answer?.progress?.openStages.map(({ stageId }) => stageId)).toEqual([evalId, baselineId]);
      expect(answer?.progress?.estimatedRemaining?.seconds).toBeGreaterThan(0n);
    },
    refused: () => ({ RUN_NOT_FOUND: [{ runId: NOBODY }] }),
  },
  listRuns: {
    requests: async ({ experimentId, experimentName, runId: parentId, runs }) => {
      const first = await runs.listRuns({ experimentId, pageSize: 2 });
      const branches = { experimentId, parentId, name: 'branch', statuses: [Status.COMPLETED], labels: LABELS };
      const times = { createTimeFrom: LONG_AGO, createTimeTo: LATE };
      return [
        [{ ...branches, ...times, text: 'Branch', view: View.FULL, pageSize: 1 }],
        [{ experimentId, order: ListOrder.NAME, ascending: true }],
        [{ experimentName, rootsOnly: true, staleOnly: true }],
        [{ experimentId, pageSize: 2, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer], { runId }) => {
      expect(answer?.runs.map(({ run }) => [run?.id, run?.configJson])).toEqual([[runId, '']]);
      // One stage of four is COMPLETED: 6 of 24 substeps, none of the turns.
      expect(answer?.runs[0]?.progress).toMatchObject({
        substepsDone: 6n,
        openStages: [{ number: 1n }, { number: 0n }],
      });
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ experimentId }) => ({
      EXPERIMENT_NOT_FOUND: [{ experimentId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ experimentId, pageToken: 'none' }],
    }),
  },
  deleteRun: {
    requests: async (scene) => {
      await claimOne(scene, scene.evalId);
      return [[{ runId: scene.runId, onBranches: OnBranches.CASCADE, cancelLive: true }]];
    },
    served: ([answer]) => expect(answer).toMatchObject({ deletedRuns: 2n, deletedTrajectories: 3n }),
    refused: (scene) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      HAS_BRANCHES: [{ runId: scene.runId }],
      RUN_ACTIVE: async () => {
        await claimOne(scene, scene.evalId);
        return [{ runId: scene.runId, onBranches: OnBranches.CASCADE }];
      },
    }),
  },
  getRunTree: {
    requests: async ({ runId, branchId, experimentId, runs }) => {
      const first = await runs.getRunTree({ runId: branchId, pageSize: 1 });
      expect(first.runs.map(({ id }) => id)).toEqual([runId]);
      return [[{ experimentId }], [{ runId: branchId, pageSize: 1, pageToken: first.nextPageToken }]];
    },
    served: ([answer], { runId, branchId }) => {
      const node = { id: branchId, parentId: runId, treeId: runId, branchPoint: 1n, configJson: '', rewardSum: 6 };
      expect(answer?.runs).toMatchObject([node]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ runId }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      EXPERIMENT_NOT_FOUND: [{ experimentId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ runId, pageToken: 'none' }],
    }),
  },
  compareRuns: {
    requests: ({ runId, branchId, bareId }) => [
      [{ runIds: [runId, branchId, bareId], startStepNumber: 1n, endStepNumber: 9n }],
    ],
    served: ([answer], { branchId, bareId }) => {
      const [branch, bare] = answer?.comparisons ?? [];
      const differences = [{ path: '/lr', valueJson: '0.1', otherValueJson: '0.5' }];
      expect(branch).toMatchObject({ runId: branchId, configDifferences: differences, removedConfigPaths: ['/lr'] });
      expect(answer?.removedConfigPaths).toEqual([]);
      const difference = { stepNumber: 2n, field: 'reward', valueJson: '2', otherValueJson: '5' };
      expect(branch?.trajectories).toMatchObject({ sharedSteps: 2n, firstDifference: difference, rewardDifference: 0 });
      expect(branch?.trajectories?.rewards.map((pair) => pair.difference)).toEqual([0, 3, undefined]);
      expect(bare).toMatchObject({
        runId: bareId,
        configDifferences: [{ path: '/seed', valueJson: '2', otherValueJson: '1' }],
      });
      expect(bare?.trajectories).toBeUndefined();
    },
    refused: ({ runId }) => ({ RUN_NOT_FOUND: [{ runIds: [runId, NOBODY] }] }),
  },
};
