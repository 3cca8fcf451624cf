import { expect } from 'vitest';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { type RunService, StageOrder, UpdateStageRequestSchema } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { claimOne, type RunScene, type StageScene } from './run_scene.ts';
import { LATE, LONG_AGO, NOBODY, type Rpcs } from './scene.ts';
import { pathsOf } from './shown.ts';

const SAID = { message: 'why', metadataJson: '{"how":1}', phase: 'somewhere' };

interface Moved {
  readonly stage?: { readonly id: string; readonly status: Status } | undefined;
}

/** A verb of a stage: the status that it accepts and the one that it refuses. */
function verb(
  status: Status,
  of: { ready(scene: StageScene): Promise<string> | string; illegal: 'trainedId' | 'baselineId' },
) {
  return {
    requests: async (scene: StageScene) => [[{ stageId: await of.ready(scene), ...SAID }]],
    served: ([answer]: Moved[]) => {
      expect(answer?.stage).toMatchObject({ status, statusMessage: 'why', phase: 'somewhere' });
    },
    refused: (scene: StageScene) => ({
      STAGE_NOT_FOUND: [{ stageId: NOBODY }],
      ILLEGAL_TRANSITION: [{ stageId: scene[of.illegal] }],
    }),
  };
}

/** A terminal verb, which refuses a repetition with another message. */
function ending(
  status: Status,
  of: Parameters<typeof verb>[1] & { readonly again: 'trainedId' | ((scene: StageScene) => Promise<string>) },
) {
  const plain = verb(status, of);
  const again = (stageId: string) => [{ stageId, message: 'for another reason' }];
  return {
    ...plain,
    refused: (scene: StageScene) => {
      const { again: ended } = of;
      return {
        ...plain.refused(scene),
        RESULT_CONFLICT: typeof ended === 'string' ? again(scene[ended]) : async () => again(await ended(scene)),
      };
    },
  };
}

export const STAGE_RPCS = {
  getOrCreateStage: {
    requests: ({ runId }) => [
      [
        {
          runId,
          kind: StageKind.TRAIN_STEP,
          number: 2n,
          initialStatus: Status.INITIALIZING,
          batch: 3n,
          phase: 'sampling',
          modelUri: 's3://models/1',
          totalSubsteps: 9n,
          metadataJson: '{}',
        },
      ],
    ],
    served: ([answer], { runId }) => {
      const made = { runId, kind: StageKind.TRAIN_STEP, number: 2n, status: Status.INITIALIZING, batch: 3n };
      const given = { phase: 'sampling', modelUri: 's3://models/1', totalSubsteps: 9n, metadataJson: '{}' };
      expect(answer?.stage).toMatchObject({ ...made, ...given, completedSubsteps: 0n });
      expect(answer?.created).toBe(true);
    },
    refused: () => ({ RUN_NOT_FOUND: [{ runId: NOBODY, kind: StageKind.EVAL, number: 0n }] }),
  },
  getStage: {
    requests: ({ runId, evalId }) => [
      [{ stageId: evalId, view: View.BASIC }],
      [{ runId, kind: StageKind.TRAIN_STEP, number: 1n }],
    ],
    served: ([answer], { runId, trainedId }) => {
      const done = { id: trainedId, runId, number: 1n, status: Status.COMPLETED, statusMessage: 'done' };
      const kept = { modelCheckpointUri: 's3://models/1', metrics: { loss: 0.5 }, metadataJson: '{"n":1}' };
      expect(answer?.stage).toMatchObject({ ...done, ...kept, completedSubsteps: 6n });
    },
    refused: ({ runId }) => ({ STAGE_NOT_FOUND: [{ runId, kind: StageKind.EVAL, number: 9n }] }),
  },
  listStages: {
    requests: async ({ runId, runs }) => {
      const first = await runs.listStages({ runId, descending: true, pageSize: 2 });
      return [
        [{ runId, kinds: [StageKind.EVAL], statuses: [Status.RUNNING], view: View.FULL }],
        [{ runId, order: StageOrder.NUMBER, hasCheckpoint: true }],
        [{ runId, descending: true, pageSize: 2, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer], { trainedId }) => {
      expect(answer?.stages.map(({ id, metadataJson }) => [id, metadataJson])).toEqual([[trainedId, '']]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ runId }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ runId, pageToken: 'none' }],
    }),
  },
  updateStage: {
    requests: ({ evalId }) => [
      [
        {
          stageId: evalId,
          updateMask: { paths: pathsOf(UpdateStageRequestSchema) },
          batch: -1n,
          statusMessage: 'half way',
          phase: 'judging',
          modelUri: 's3://models/2',
          modelCheckpointUri: 's3://models/3',
          metrics: { accuracy: 0.25 },
          metadataJson: '[]',
          completedSubsteps: 2n,
          totalSubsteps: 4n,
          timings: { rollout: { startTime: LONG_AGO, endTime: LATE }, judging: { startTime: LATE } },
        },
      ],
    ],
    served: ([answer]) => {
      const said = { batch: -1n, statusMessage: 'half way', phase: 'judging', metadataJson: '[]' };
      const models = { modelUri: 's3://models/2', modelCheckpointUri: 's3://models/3', metrics: { accuracy: 0.25 } };
      const times = { rollout: { startTime: LONG_AGO, endTime: LATE }, judging: { startTime: LATE } };
      expect(answer?.stage).toMatchObject({ ...said, ...models, completedSubsteps: 2n, totalSubsteps: 4n });
      expect(answer?.stage?.timings).toMatchObject(times);
      expect(answer?.stage?.status).toBe(Status.RUNNING);
    },
    refused: () => ({ STAGE_NOT_FOUND: [{ stageId: NOBODY, updateMask: { paths: ['phase'] } }] }),
  },
  closeQueue: {
    requests: ({ evalId }) => [[{ stageId: evalId }]],
    served: ([answer], { evalId }) => {
      const { stage } = answer!;
      expect(stage).toMatchObject({ id: evalId, status: Status.RUNNING, metadataJson: '{"n":1}' });
      expect(stage?.queueCloseTime).toEqual(stage?.updateTime);
    },
    refused: () => ({ STAGE_NOT_FOUND: [{ stageId: NOBODY }] }),
  },
  startStage: verb(Status.RUNNING, { ready: ({ baselineId }) => baselineId, illegal: 'trainedId' }),
  completeStage: ending(Status.COMPLETED, {
    ready: ({ evalId }) => evalId,
    again: 'trainedId',
    illegal: 'baselineId',
  }),
  failStage: ending(Status.FAILED, {
    ready: ({ evalId }) => evalId,
    again: async ({ baselineId, runs }) => {
      await runs.failStage({ stageId: baselineId, message: 'for one reason' });
      return baselineId;
    },
    illegal: 'trainedId',
  }),
  cancelStage: {
    ...ending(Status.CANCELLED, {
      ready: ({ baselineId }) => baselineId,
      again: async ({ baselineId, runs }) => {
        await runs.cancelStage({ stageId: baselineId, message: 'for one reason' });
        return baselineId;
      },
      illegal: 'trainedId',
    }),
    requests: async (scene) => {
      await claimOne(scene, scene.evalId);
      return [[{ stageId: scene.evalId, ...SAID, cancelRollouts: true }]];
    },
    served: ([answer]) => {
      expect(answer).toMatchObject({
        stage: { status: Status.CANCELLED, statusMessage: 'why' },
        cancelledRollouts: 1n,
      });
    },
  },
  reopenStage: verb(Status.RUNNING, { ready: ({ trainedId }) => trainedId, illegal: 'baselineId' }),
} satisfies Partial<Rpcs<typeof RunService.method, StageScene, RunScene>>;
