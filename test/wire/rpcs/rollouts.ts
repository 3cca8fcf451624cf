import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import { OnSuccess } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { type RolloutService, UpdateRolloutRequestSchema } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { CATALOGUE_RPCS } from './catalogue.ts';
import { ENVIRONMENT_LIST_RPCS, ENVIRONMENT_RPCS } from './environments.ts';
import { GROUP_READ_RPCS, GROUP_RPCS } from './groups.ts';
import { CLAIM_RPCS, HEARTBEAT_RPCS } from './queue.ts';
import type { LiveScene, RolloutScene } from './rollout_scene.ts';
import { RETRY_RPCS, ROLLOUT_VERB_RPCS } from './rollout_verbs.ts';
import { LABELS, LATE, LONG_AGO, NOBODY, type Rpcs } from './scene.ts';
import { pathsOf } from './shown.ts';
import { OVERRIDE_RPCS, VALIDATION_RPCS } from './verdicts.ts';

const GIVEN = {
  labels: LABELS,
  priority: 5,
  maxTurns: 4n,
  maxAttempts: 2,
  modelUri: 's3://models/1',
  metadataJson: '[]',
};

const TIMED = { attemptTimeout: { seconds: 90n }, retryDelay: { seconds: 0n, nanos: 500_000_000 } };

/** The values with which the first rollout of the scene was created. */
const CREATED = { labels: { which: 'done', ...LABELS }, inputJson: '{"seed":1}', modelUri: 's3://models/0' };

const claiming = () => ({ claim: { workerId: 'trainer' }, requestId: randomUUID() });

/** RPCs about rollouts that are not over, with requests that need no others. */
export const LIVE_RPCS = {
  ...GROUP_RPCS,
  ...CLAIM_RPCS,
  ...ROLLOUT_VERB_RPCS,
  ...VALIDATION_RPCS,
} satisfies Partial<Rpcs<typeof RolloutService.method, LiveScene, RolloutScene>>;

export const ROLLOUT_RPCS: Rpcs<typeof RolloutService.method, RolloutScene> = {
  ...CATALOGUE_RPCS,
  ...ENVIRONMENT_RPCS,
  ...ENVIRONMENT_LIST_RPCS,
  ...GROUP_READ_RPCS,
  ...HEARTBEAT_RPCS,
  ...RETRY_RPCS,
  ...OVERRIDE_RPCS,
  ...LIVE_RPCS,
  createRollouts: {
    requests: ({ stageId, taskId, mainId }) => [
      [
        {
          stageId,
          requestId: randomUUID(),
          claim: { workerId: 'trainer', leaseDuration: { seconds: 30n } },
          rollouts: [
            { groupNumber: 0n, number: 0n, taskId, ...CREATED },
            {
              ...GIVEN,
              groupNumber: 7n,
              number: 2n,
              rolloutId: randomUUID(),
              taskId,
              inputJson: '{"seed":2}',
              ...TIMED,
              startFrom: { trajectoryId: mainId, stepNumber: 2n },
              onSuccess: OnSuccess.CANCEL_PENDING,
            },
          ],
        },
      ],
    ],
    served: ([answer], { doneId, endedGroupId }) => {
      const id = expect.stringMatching(/./);
      const made = { existed: false, rolloutId: id, groupId: id, number: 2n };
      const done = { existed: true, rolloutId: doneId, groupId: endedGroupId, number: 0n };
      expect(answer?.rollouts).toMatchObject([done, made]);
      const rolloutId = answer!.rollouts[1]!.rolloutId;
      const rollout = { id: rolloutId, attempt: 1, workerId: 'trainer', inputJson: '', metadataJson: '[]' };
      expect(answer?.claims).toMatchObject([
        { rollout, task: { inputJson: '{}' }, trajectory: { nextStepNumber: 3n }, truncated: false },
      ]);
    },
    refused: ({ runId, stageId, mainId, doneId, runs, rollouts }) => ({
      REQUEST_ID_REUSED: async () => {
        const requestId = randomUUID();
        await rollouts.createRollouts({ stageId, rollouts: [{ groupNumber: 8n }], requestId });
        return [{ stageId, rollouts: [{ groupNumber: 8n }, { groupNumber: 8n }], requestId }];
      },
      STAGE_NOT_CLAIMABLE: async () => {
        const paused = (await runs.createRun({ initialStatus: Status.RUNNING })).run!;
        const { stage } = await runs.getOrCreateStage({ runId: paused.id, kind: StageKind.TRAIN_STEP, number: 0n });
        await runs.pauseRun({ runId: paused.id });
        return [{ stageId: stage!.id, rollouts: [{ groupNumber: 0n }], ...claiming() }];
      },
      CLAIMS_TOO_LARGE: async () => {
        const id = randomUUID();
        await rollouts.upsertTasks({ tasks: [{ id, inputJson: `"${'i'.repeat(130_000)}"` }] });
        return [
          { stageId, rollouts: Array.from({ length: 8 }, () => ({ groupNumber: 8n, taskId: id })), ...claiming() },
        ];
      },
      QUEUE_CLOSED: async () => {
        const place = { runId, kind: StageKind.TRAIN_STEP, number: 99n };
        const closedId = (await runs.getOrCreateStage(place)).stage!.id;
        await runs.closeQueue({ stageId: closedId });
        return [{ stageId: closedId, rollouts: [{ groupNumber: 0n, number: 0n }] }];
      },
      STAGE_NOT_FOUND: [{ stageId: NOBODY, rollouts: [{ groupNumber: 0n, number: 0n }] }],
      TASK_NOT_FOUND: [{ stageId, rollouts: [{ groupNumber: 0n, number: 9n, taskId: 'nobody' }] }],
      TRAJECTORY_NOT_FOUND: [startingAt(stageId, NOBODY, 0n)],
      BRANCH_POINT_BEYOND_END: [startingAt(stageId, mainId, 4n)],
      ROLLOUT_EXISTS: [{ stageId, rollouts: [{ groupNumber: 0n, number: 9n, rolloutId: doneId }] }],
      ROLLOUT_CONFLICT: [{ stageId, rollouts: [{ groupNumber: 0n, number: 0n }] }],
    }),
  },
  getRollout: {
    requests: ({ doneId }) => [[{ rolloutId: doneId, view: View.BASIC }], [{ rolloutId: doneId }]],
    served: ([answer], { doneId, doneTrajectoryId, environmentId, stateId }) => {
      const ended = { id: doneId, status: Status.COMPLETED, statusMessage: 'done', attempt: 1, turns: 2n, reward: 3 };
      const told = { validationPassed: true, success: true, inputJson: '{"seed":1}', metrics: { tokens: 100 } };
      expect(answer?.rollout).toMatchObject({ ...ended, ...told, trajectoryId: doneTrajectoryId });
      expect(answer?.rollout?.result).toMatchObject({ taskCompleted: true, summaryJson: '{"n":1}' });
      const attempt = { number: 1, trajectoryId: doneTrajectoryId, status: Status.COMPLETED, workerId: 'worker' };
      const own = { reward: 3, success: true, metrics: { tokens: 100 }, environmentIds: [environmentId] };
      expect(answer?.attempts).toMatchObject([
        {
          ...attempt,
          ...own,
          validations: [
            { attempt: 1, name: 'free' },
            { attempt: 1, name: 'state' },
          ],
        },
      ]);
      const judged = {
        validatorId: stateId,
        name: 'state',
        success: true,
        query: 'what is',
        expectedResult: 'that',
      };
      const free = { name: 'free', validatorId: '', advisory: true, success: false, query: '' };
      expect(answer?.validations).toMatchObject([
        { ...free, rolloutId: doneId },
        { ...judged, rolloutId: doneId, detailsJson: '{"m":1}' },
      ]);
      expect(answer).toMatchObject({ environmentIds: [environmentId], truncated: false });
    },
    refused: () => ({ ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY }] }),
  },
  listRollouts: {
    requests: async ({ runId, stageId, liveGroupId, taskId, doneId, rollouts }) => {
      const first = await rollouts.listRollouts({ runId, pageSize: 4 });
      expect(first.rollouts[0]).toMatchObject({ id: doneId, inputJson: '', reward: 3 });
      const done = { taskId, statuses: [Status.COMPLETED], labels: { which: 'done' }, success: true };
      const only = await rollouts.listRollouts({ stageId, ...done, minReward: 3, maxReward: 3, view: View.FULL });
      expect(only.rollouts.map(({ id, inputJson }) => [id, inputJson])).toEqual([[doneId, '{"seed":1}']]);
      return [
        [{ stageId, ...done, minReward: 3, maxReward: 3, view: View.FULL }],
        [{ groupId: liveGroupId }],
        [{ workerId: 'worker', createTimeFrom: LONG_AGO, createTimeTo: LATE }],
        [{ runId, pageSize: 4, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer], { runningId }) => {
      expect(answer?.rollouts.map(({ id }) => id)).toEqual([runningId]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ runId }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      STAGE_NOT_FOUND: [{ stageId: NOBODY }],
      GROUP_NOT_FOUND: [{ groupId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ runId, pageToken: 'none' }],
    }),
  },
  updateRollout: {
    requests: ({ heldId, environmentId }) => [
      [
        {
          ...GIVEN,
          rolloutId: heldId,
          attempt: 1,
          updateMask: { paths: pathsOf(UpdateRolloutRequestSchema) },
          statusMessage: 'half way',
          phase: 'env_creation',
          metrics: { tokens: 5 },
          timings: { env_creation: { startTime: LONG_AGO, endTime: LATE } },
          environmentIds: [environmentId],
        },
      ],
    ],
    served: ([answer]) => {
      const timings = { env_creation: { startTime: LONG_AGO, endTime: LATE } };
      const told = { statusMessage: 'half way', phase: 'env_creation' };
      expect(answer?.rollout).toMatchObject({ ...GIVEN, ...told, metrics: { tokens: 5 }, timings });
      expect(answer?.rollout?.status).toBe(Status.INITIALIZING);
    },
    refused: ({ heldId }) => {
      const updateMask = { paths: ['priority', 'environment_ids'] };
      return {
        ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY, updateMask }],
        LEASE_LOST: [{ rolloutId: heldId, attempt: 2, updateMask }],
        NO_ATTEMPT: [{ rolloutId: heldId, attempt: 2, updateMask: { paths: ['environment_ids'] } }],
        ENVIRONMENT_NOT_FOUND: [{ rolloutId: heldId, updateMask, environmentIds: [NOBODY] }],
      };
    },
  },
  readRollouts: {
    requests: async ({ stageId, endedGroupId: groupId, runs, rollouts, pendingId, heldId, runningId }) => {
      // Otherwise the last of them would not end by itself.
      for (const rolloutId of [pendingId, heldId, runningId]) await rollouts.cancelRollout({ rolloutId });
      await runs.completeStage({ stageId });
      return [
        [{ stageId, completeGroupsOnly: true, view: View.BASIC, inlineBytes: 100 }],
        [{ groupId }],
        [{ stageId, follow: true }],
      ];
    },
    served: (answers, { doneId, failedId, heldId, runningId }) => {
      expect(answers.map(({ rollout }) => rollout?.id)).toEqual([doneId, failedId, heldId, runningId, undefined]);
      expect(answers[0]).toMatchObject({ rolloutDone: true, groupDone: false });
      expect(answers[0]?.steps.map(({ stepNumber, reward }) => [stepNumber, reward])).toEqual([
        [0n, 1],
        [1n, 1],
        [2n, 1],
      ]);
      expect(answers[1]).toMatchObject({ steps: [], rolloutDone: true, groupDone: true });
      expect(answers.at(-1)).toMatchObject({ caughtUp: true });
    },
    refused: ({ endedGroupId: groupId }) => ({
      STAGE_NOT_FOUND: [{ stageId: NOBODY }],
      GROUP_NOT_FOUND: [{ groupId: NOBODY }],
      INVALID_REQUEST: [{ groupId, follow: true }],
    }),
  },
};

function startingAt(stageId: string, trajectoryId: string, stepNumber: bigint) {
  return { stageId, rollouts: [{ groupNumber: 0n, number: 9n, startFrom: { trajectoryId, stepNumber } }] };
}
