import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  BranchMeasure,
  StepOrder,
  StepScope,
  StepValue,
  TrajectoryOrder,
  type TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { sha256 } from '../samples.ts';
import { collect } from '../story.ts';
import { bytes, LABELS, LATE, LONG_AGO, NOBODY, type Rpcs } from './scene.ts';

/** Tests of branching, reading, comparing and tagging. */
export const TRAJECTORY_READS = {
  branchTrajectory: {
    requests: ({ id }) => [
      [{ trajectoryId: id, tag: 'here' }],
      [
        {
          trajectoryId: id,
          stepNumber: 2n,
          branchId: randomUUID(),
          requestId: randomUUID(),
          name: 'new branch',
          labels: LABELS,
          metadataJson: '1',
          scoredMetrics: ['score'],
          taskId: 'a task of its own',
        },
      ],
    ],
    served: ([answer], { id }) => {
      const made = {
        parentId: id,
        branchPoint: 2n,
        treeId: id,
        taskId: 'a task of its own',
        nextStepNumber: 3n,
        rewardSum: 3,
      };
      expect(answer?.trajectory?.branchRewardSum).toBe(0);
      expect(answer?.trajectory?.scoredMetrics).toEqual(['score']);
      expect(answer?.trajectory).toMatchObject({ ...made, name: 'new branch', labels: LABELS, metadataJson: '1' });
    },
    refused: ({ id, branchId, trajectories }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY, stepNumber: 0n }],
      TAG_NOT_FOUND: [{ trajectoryId: id, tag: 'nowhere' }],
      BRANCH_POINT_BEYOND_END: [{ trajectoryId: id, stepNumber: 4n }],
      TRAJECTORY_EXISTS: [{ trajectoryId: id, stepNumber: 0n, branchId }],
      REQUEST_ID_REUSED: async () => {
        const requestId = randomUUID();
        await trajectories.branchTrajectory({ trajectoryId: id, stepNumber: 0n, requestId });
        return [{ trajectoryId: id, stepNumber: 1n, requestId }];
      },
    }),
  },
  branchTrajectories: {
    requests: ({ task }) => [
      [
        {
          taskId: task,
          branchTaskId: `${task} branched`,
          requestId: randomUUID(),
          name: 'new branch',
          labels: { ...LABELS, other: '1' },
          metadataJson: '{"branched":true}',
        },
      ],
    ],
    served: async ([answer], { task, id, branchId, trajectories }) => {
      expect(answer).toMatchObject({ count: 2n });
      const request = { taskId: `${task} branched`, view: View.FULL, ascending: true };
      const made = { name: 'new branch', labels: { ...LABELS, other: '1' }, branchRewardSum: 0 };
      expect((await trajectories.listTrajectories(request)).trajectories).toMatchObject([
        { ...made, parentId: id, branchPoint: 3n, metadataJson: '{"seed":1,"branched":true}' },
        { ...made, parentId: branchId, branchPoint: 2n, metadataJson: '{"branched":true}' },
      ]);
    },
    refused: ({ task, trajectories }) => ({
      REQUEST_ID_REUSED: async () => {
        const request = { taskId: task, branchTaskId: `${task} branched`, requestId: randomUUID() };
        await trajectories.branchTrajectories(request);
        return [{ ...request, name: 'another' }];
      },
      INVALID_REQUEST: [{ taskId: task, branchTaskId: task, requestId: randomUUID() }],
    }),
  },
  getStep: {
    requests: ({ id, branchId }) => [
      [{ trajectoryId: id, tag: 'here', view: View.BASIC }],
      [{ trajectoryId: branchId, stepNumber: 1n }],
    ],
    served: ([answer], { id }) => {
      expect(answer).toMatchObject({ trajectoryId: id, step: { stepNumber: 1n, reward: 1 } });
      expect(answer?.step?.states).toMatchObject([{ name: 'env', digest: sha256(bytes('one')), size: 3n }]);
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY, stepNumber: 0n }],
      STEP_NOT_FOUND: [{ trajectoryId: id, stepNumber: 4n }],
      TAG_NOT_FOUND: [{ trajectoryId: id, tag: 'nowhere' }],
    }),
  },
  readSteps: {
    requests: ({ branchId }) => [
      [
        {
          trajectoryId: branchId,
          startStepNumber: 1n,
          endStepNumber: 2n,
          view: View.BASIC,
          follow: true,
          inlineBytes: 9,
        },
      ],
      [{ trajectoryId: branchId, startStepNumber: 1n, follow: true }],
    ],
    served: (answers, { id, branchId }) => {
      const owned = answers.flatMap((each) => each.steps.map((step) => [each.trajectoryId, step.stepNumber]));
      expect(owned).toEqual([
        [id, 1n],
        [branchId, 2n],
      ]);
      expect(answers.at(-1)).toMatchObject({ nextStepNumber: 3n, caughtUp: true, sealed: true });
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      RANGE_BEYOND_END: [{ trajectoryId: id, startStepNumber: 5n }],
    }),
  },
  readTrajectories: {
    requests: async ({ id, branchId, task, runId, experimentId, trajectories }) => {
      const all = { taskId: task, statuses: [Status.RUNNING, Status.COMPLETED], labels: LABELS };
      const rewards = { minRewardSum: 0, maxRewardSum: 9, minLength: 1n, maxLength: 9n };
      const request = {
        ...all,
        ...rewards,
        trajectoryIds: [id, branchId],
        runId,
        experimentId,
        createTimeFrom: LONG_AGO,
        createTimeTo: LATE,
        order: TrajectoryOrder.REWARD_SUM,
        descending: true,
        steps: StepScope.OWN,
        view: View.BASIC,
        inlineBytes: 3,
      };
      const [first] = await collect(trajectories.readTrajectories(request));
      expect(first).toMatchObject({ trajectory: { id: branchId }, ownerId: branchId, trajectoryDone: true });
      return [
        [{ ...request, resumeToken: first!.resumeToken }],
        [{ stepLabels: { phase: 'train' }, shard: { index: 1, count: 2 } }],
        [{ trajectoryIds: [branchId], inlineBytes: 5, name: 'branch' }],
      ];
    },
    served: (answers, { id, branchId }) => {
      const owned = answers.flatMap((each) => each.steps.map((step) => [each.ownerId, step.stepNumber]));
      expect(owned).toEqual([
        [id, 0n],
        [id, 1n],
        [branchId, 2n],
      ]);
      const blobs = answers.flatMap((each) => each.blobs.map(({ data }) => Buffer.from(data).toString()));
      expect(blobs).toEqual(['one', 'other']);
      const shown = answers.find(({ trajectory }) => trajectory !== undefined);
      expect(shown?.trajectory).toMatchObject({ id: branchId, metadataJson: '' });
      expect(answers.at(-1)).toMatchObject({ trajectoryDone: true, deleted: false });
    },
    refused: () => ({
      INVALID_PAGE_TOKEN: [{ resumeToken: 'none' }],
      INVALID_REQUEST: [{ order: TrajectoryOrder.REQUESTED }],
    }),
  },
  listSteps: {
    requests: async ({ id, task, runId, experimentId, trajectories }) => {
      const first = await trajectories.listSteps({ taskId: task, pageSize: 4 });
      expect(await trajectories.listSteps({ runId, pageSize: 4 })).toMatchObject({ steps: first.steps });
      expect(await trajectories.listSteps({ experimentId, pageSize: 4 })).toMatchObject({ steps: first.steps });
      const filter = { terminalOnly: true, minReward: 3, maxReward: 3, commitTimeFrom: LONG_AGO, commitTimeTo: LATE };
      const order = { order: StepOrder.REWARD, descending: true, view: View.FULL };
      return [
        [{ trajectoryId: id, ...filter, ...order, pageSize: 1 }],
        [{ trajectoryId: id, hasState: 'memory', hasAnyState: true, labels: { phase: 'train' }, inlineBytes: 4 }],
        [{ taskId: task, inherited: true, anyOfStates: ['memory', 'none'] }],
        [{ runId }],
        [{ experimentId, order: StepOrder.METRIC, metricKey: 'score' }],
        [{ taskId: task, pageSize: 4, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer], { id }) => {
      expect(answer?.steps.map(({ trajectoryId, step }) => [trajectoryId, step?.stepNumber])).toEqual([[id, 3n]]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      EXPERIMENT_NOT_FOUND: [{ experimentId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ trajectoryId: id, pageToken: 'none' }],
    }),
  },
  getCheckpoint: {
    requests: ({ id }) => [
      [{ trajectoryId: id, stepNumber: 1n }],
      [{ trajectoryId: id, tag: 'here' }],
      [{ trajectoryId: id, atOrBefore: 3n, stateNames: ['memory', 'env'] }],
    ],
    served: ([answer], { id }) => {
      expect(answer).toMatchObject({ trajectoryId: id, step: { stepNumber: 2n } });
      const states = answer?.step?.states.map(({ name, data }) => [name, Buffer.from(data ?? []).toString()]);
      expect(states).toEqual([
        ['env', 'two'],
        ['memory', 'mind'],
      ]);
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      CHECKPOINT_NOT_FOUND: [{ trajectoryId: id, stateNames: ['nothing'] }],
      STEP_NOT_FOUND: [{ trajectoryId: id, stepNumber: 4n }],
      TAG_NOT_FOUND: [{ trajectoryId: id, tag: 'nowhere' }],
    }),
  },
  getLineage: {
    requests: async ({ id, branchId, trajectories }) => {
      const first = await trajectories.getLineage({ trajectoryId: branchId, pageSize: 1 });
      expect(first.segments).toMatchObject([
        { trajectoryId: id, name: 'main', startStepNumber: 0n, endStepNumber: 2n, deleted: false },
      ]);
      return [[{ trajectoryId: branchId, pageSize: 1, pageToken: first.nextPageToken }]];
    },
    served: ([answer], { branchId }) => {
      expect(answer?.segments).toMatchObject([
        { trajectoryId: branchId, name: 'branch', startStepNumber: 2n, endStepNumber: 3n, deleted: false },
      ]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ trajectoryId: id, pageToken: 'none' }],
    }),
  },
  getTree: {
    requests: async ({ id, branchId, trajectories }) => {
      const first = await trajectories.getTree({ trajectoryId: id, pageSize: 1 });
      return [[{ trajectoryId: branchId, pageSize: 1, pageToken: first.nextPageToken }]];
    },
    served: ([answer], { id, branchId }) => {
      const node = {
        trajectory: { id: branchId, parentId: id, branchPoint: 1n, status: Status.COMPLETED, branchRewardSum: 5 },
        deleted: false,
        gain: 3,
        gainSteps: 1n,
      };
      expect(answer?.nodes).toMatchObject([node]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ trajectoryId: id, pageToken: 'none' }],
    }),
  },
  compareBranches: {
    requests: ({ id }) => {
      const values = { treeId: id, label: 'kind', value: 'a', otherValue: 'b' };
      return [[{ ...values, measure: BranchMeasure.STEPS, confidence: 0.9, seed: 7 }]];
    },
    served: ([answer]) => {
      expect(answer).toMatchObject({ pairs: [], pairCount: 0, higher: 0, lower: 0, signTestP: 1 });
      expect(answer?.meanDifference).toBeUndefined();
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ treeId: NOBODY, label: 'kind', value: 'a', otherValue: 'b' }],
      INVALID_REQUEST: [{ treeId: id, label: 'kind', value: 'a', otherValue: 'a' }],
    }),
  },
  searchSteps: {
    requests: async ({ id, branchId, task, runId, experimentId, trajectories }) => {
      const once = { text: 'BEGIN', taskId: task, maxHits: 1 };
      const [first] = await collect(trajectories.searchSteps(once));
      return [
        [{ ...once, resumeToken: first!.resumeToken }],
        [{ text: 'begin', runId }],
        [{ text: 'begin', experimentId }],
        [{ text: 'begin', treeId: branchId }],
        [{ text: 'begin', trajectoryId: id }],
      ];
    },
    served: (answers, { id }) => {
      const hit = { stepNumber: 0n, field: 'observations[0].content.text', before: '', match: 'begin', after: '' };
      expect(answers.flatMap(({ hits }) => hits)).toMatchObject([{ trajectoryId: id, ...hit }]);
      expect(answers.at(-1)).toMatchObject({ searchedSteps: 4n, resumeToken: '' });
    },
    refused: () => ({
      TRAJECTORY_NOT_FOUND: [{ text: 'a', trajectoryId: NOBODY }],
      RUN_NOT_FOUND: [{ text: 'a', runId: NOBODY }],
      EXPERIMENT_NOT_FOUND: [{ text: 'a', experimentId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ text: 'a', resumeToken: 'none' }],
    }),
  },
  readStepSeries: {
    requests: ({ id, branchId }) => {
      const range = { startStepNumber: 1n, endStepNumber: 9n, maxPoints: 8, stretchSteps: 1n };
      const state = { value: StepValue.STATE, stateName: 'env', pointer: '/a' };
      return [
        [{ trajectoryIds: [id, branchId], steps: StepScope.OWN, ...range, value: StepValue.REWARD }],
        [{ treeId: branchId, value: StepValue.METRIC, metricKey: 'score' }],
        [{ treeId: branchId, ...state }],
        [{ treeId: branchId }],
      ];
    },
    served: ([answer], { id, branchId }) => {
      expect(answer?.series).toMatchObject([
        { trajectoryId: id, stepNumbers: [0n, 1n, 2n, 3n], values: [0, 1, 3, 6], stretchSteps: 1n, nextStepNumber: 4n },
        { trajectoryId: branchId, stepNumbers: [0n, 1n, 2n], values: [0, 1, 6], stretchSteps: 1n, nextStepNumber: 3n },
      ]);
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ treeId: NOBODY }],
      INVALID_REQUEST: [{ trajectoryIds: [id], value: StepValue.INFO, pointer: 'no slash' }],
    }),
  },
  compareTrajectories: {
    requests: ({ id, branchId }) => [
      [{ trajectoryId: id, otherTrajectoryId: branchId, startStepNumber: 1n, endStepNumber: 9n }],
    ],
    served: ([answer]) => {
      expect(answer).toMatchObject({ sharedSteps: 2n, rewardSum: 6, otherRewardSum: 6, rewardDifference: 0 });
      expect(answer).toMatchObject({ nextStepNumber: 4n, otherNextStepNumber: 3n });
      const difference = { stepNumber: 2n, field: 'reward', valueJson: '2', otherValueJson: '5' };
      expect(answer?.firstDifference).toMatchObject(difference);
      const rewards = answer?.rewards.map((each) => [each.stepNumber, each.reward, each.otherReward, each.difference]);
      expect(rewards).toEqual([
        [1n, 1, 1, 0],
        [2n, 2, 5, 3],
        [3n, 3, undefined, undefined],
      ]);
    },
    refused: ({ id }) => ({ TRAJECTORY_NOT_FOUND: [{ trajectoryId: id, otherTrajectoryId: NOBODY }] }),
  },
  setTag: {
    requests: ({ id }) => [[{ trajectoryId: id, name: 'here', stepNumber: 3n, expectedStepNumber: 1n }]],
    served: ([answer], { id }) => {
      expect(answer?.tag).toMatchObject({ trajectoryId: id, name: 'here', stepNumber: 3n });
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY, name: 'a', stepNumber: 0n }],
      STEP_NOT_FOUND: [{ trajectoryId: id, name: 'a', stepNumber: 4n }],
      TAG_MOVED: [{ trajectoryId: id, name: 'here', stepNumber: 0n, expectedStepNumber: -1n }],
    }),
  },
  listTags: {
    requests: async ({ id, trajectories }) => {
      await trajectories.setTag({ trajectoryId: id, name: 'there', stepNumber: 2n });
      const first = await trajectories.listTags({ trajectoryId: id, pageSize: 1 });
      return [
        [{ trajectoryId: id, pageSize: 1, pageToken: first.nextPageToken }],
        [{ trajectoryId: id, name: 'there' }],
      ];
    },
    served: ([answer]) => {
      expect(answer).toMatchObject({ tags: [{ name: 'there', stepNumber: 2n }], nextPageToken: '' });
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ trajectoryId: id, pageToken: 'none' }],
    }),
  },
  deleteTag: {
    requests: ({ id }) => [[{ trajectoryId: id, name: 'here' }]],
    served: (answers) => expect(answers).toHaveLength(1),
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY, name: 'here' }],
      TAG_NOT_FOUND: [{ trajectoryId: id, name: 'nowhere' }],
    }),
  },
} satisfies Partial<Rpcs<typeof TrajectoryService.method>>;
