import { randomUUID } from 'node:crypto';
import { create, type DescMethod, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { expect } from 'vitest';
import type { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type Step, StepSchema, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches, StepOrder, type TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { AppendCall } from './append-call.ts';
import { sha256 } from './samples.ts';
import { putState, type WireClient } from './story.ts';

/** What every RPC is given when it is driven: one entry an RPC, which the types and the test hold complete. */

/** What there is before an RPC is called; a fresh one for every set of calls. */
export interface Scene extends WireClient {
  readonly task: string;
  /** Steps 0 to 3, open, held by no writer; step 1 has the state `env`, step 2 the states `env` and `memory`. Tag `here` names step 1. */
  readonly id: string;
  readonly uid: string;
  /** Branched at step 1, one own step, sealed. */
  readonly branchId: string;
  /** A state that was put, and that no step refers to. */
  readonly put: string;
}

type Init<M extends DescMethod> = MessageInitShape<M['input']>;

export interface Rpc<M extends DescMethod> {
  /** Requests that are served, each in the frames that its method sends. Together they set every field of the request. */
  requests(scene: Scene): Promise<Init<M>[][]> | Init<M>[][];
  /** What the last of the requests is answered. */
  served(answers: MessageShape<M['output']>[], scene: Scene): void;
  /** Requests that are refused, by the reasons that the proto documents at the method, in an order in which one scene serves all. */
  refused(scene: Scene): { readonly [reason: string]: Init<M>[] | (() => Promise<Init<M>[]>) };
}

type Rpcs<Methods extends Record<string, DescMethod>> = { readonly [Name in keyof Methods]: Rpc<Methods[Name]> };

export const NOBODY = '00000000-0000-4000-8000-000000000000';
export const NO_STATE = '0'.repeat(64);
const LONG_AGO = { seconds: 1n, nanos: 1 };
const LATE = { seconds: 4_000_000_000n, nanos: 1 };
const LABELS = { label: 'value' };

function bytes(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** A step with text in every place that can hold some. */
export function richStep(stepNumber: bigint): Step {
  return create(StepSchema, {
    stepNumber,
    actions: [
      { type: 'tool_call', name: 'look', callId: 'c1', content: { text: 'around' }, tokenIds: [1], logprobs: [-0.5] },
      { type: 'code', content: { json: '{"a":1}' } },
    ],
    observations: [
      { type: 'tool_result', callId: 'c1', isError: true, content: { data: bytes('png'), mediaType: 'image/png' } },
      { type: 'link', content: { uri: 'https://example.org/', mediaType: 'text/html' } },
    ],
    reward: 0.5,
    terminated: true,
    truncated: true,
    infoJson: '{"info":true}',
    metadataJson: '{"metadata":true}',
    metrics: { value: 1.5 },
    startTime: LONG_AGO,
    endTime: LATE,
    states: [{ name: 'env', data: bytes('state'), digest: sha256(bytes('state')), mediaType: 'text/plain' }],
  });
}

export async function makeScene(client: WireClient): Promise<Scene> {
  const task = `rpcs/${randomUUID()}`;
  const put = await putState(client, bytes(task));
  const fields = { name: 'main', taskId: task, labels: LABELS, metadataJson: '{"seed":1}' };
  const { trajectory } = await client.trajectories.createTrajectory({ ...fields, root: richRoot() });
  const trajectoryId = trajectory!.id;
  const env = (text: string, name = 'env') => ({ name, data: bytes(text), mediaType: 'text/plain' });
  const steps = [
    { stepNumber: 1n, reward: 1, states: [env('one')] },
    { stepNumber: 2n, reward: 2, states: [env('two'), env('mind', 'memory')] },
    { stepNumber: 3n, reward: 3, terminated: true },
  ];
  for (const step of steps) await client.trajectories.appendStep({ trajectoryId, step });
  await client.trajectories.setTag({ trajectoryId, name: 'here', stepNumber: 1n });
  const branched = await client.trajectories.branchTrajectory({
    trajectoryId,
    stepNumber: 1n,
    name: 'branch',
    labels: LABELS,
  });
  const branchId = branched.trajectory!.id;
  const own = { stepNumber: 2n, reward: 5, states: [env('other')] };
  await client.trajectories.appendStep({ trajectoryId: branchId, step: own });
  await client.trajectories.sealTrajectory({
    trajectoryId: branchId,
    seal: { status: Status.COMPLETED, message: 'done' },
  });
  return { ...client, task, id: trajectoryId, uid: trajectory!.uid, branchId, put };
}

function richRoot(): Step {
  return create(StepSchema, { observations: [{ type: 'reset', content: { text: 'begin' } }] });
}

/** The scene's trajectory, granted to writer `one`. */
async function held({ trajectories, id }: Scene): Promise<string> {
  const { call } = await AppendCall.open(trajectories, { trajectoryId: id, writerId: 'one' });
  await call.close();
  return id;
}

export const TRAJECTORY_RPCS: Rpcs<typeof TrajectoryService.method> = {
  createTrajectory: {
    requests: ({ task }) => [
      [
        {
          trajectoryId: randomUUID(),
          requestId: randomUUID(),
          name: 'made',
          taskId: task,
          labels: LABELS,
          metadataJson: '{}',
          root: { ...richStep(1n), stepNumber: 0n },
        },
      ],
    ],
    served: ([answer], { task }) => {
      expect(answer?.trajectory).toMatchObject({ name: 'made', taskId: task, nextStepNumber: 1n, rewardSum: 0.5 });
    },
    refused: ({ id, trajectories }) => ({
      TRAJECTORY_EXISTS: [{ trajectoryId: id }],
      REQUEST_ID_REUSED: async () => {
        const requestId = randomUUID();
        await trajectories.createTrajectory({ requestId });
        return [{ requestId, name: 'another' }];
      },
      TRAJECTORY_NOT_FOUND: async () => {
        const requestId = randomUUID();
        const { trajectory } = await trajectories.createTrajectory({ requestId });
        await trajectories.deleteTrajectory({ trajectoryId: trajectory!.id });
        return [{ requestId }];
      },
      STATE_NOT_FOUND: [{ root: { states: [{ digest: NO_STATE }] } }],
      DIGEST_MISMATCH: [{ root: { states: [{ data: bytes('x'), digest: NO_STATE }] } }],
    }),
  },
  getTrajectory: {
    requests: ({ id }) => [[{ trajectoryId: id, view: View.BASIC }], [{ trajectoryId: id }]],
    served: ([answer], { id, uid }) => {
      expect(answer?.trajectory).toMatchObject({
        id,
        uid,
        metadataJson: '{"seed":1}',
        nextStepNumber: 4n,
        rewardSum: 6,
      });
    },
    refused: () => ({ TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }] }),
  },
  listTrajectories: {
    requests: async ({ task, id, trajectories }) => {
      const first = await trajectories.listTrajectories({ taskId: task, pageSize: 1 });
      const branches = { taskId: task, parentId: id, treeId: id, branchPoint: 1n, statuses: [Status.COMPLETED] };
      const times = { createTimeFrom: LONG_AGO, createTimeTo: LATE };
      return [
        [{ ...branches, ...times, labels: LABELS, name: 'branch', view: View.FULL, pageSize: 1 }],
        [{ rootsOnly: true, taskId: task }],
        [{ taskId: task, pageSize: 1, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer], { id }) => {
      expect(answer?.trajectories.map((each) => [each.id, each.metadataJson])).toEqual([[id, '']]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: () => ({ INVALID_PAGE_TOKEN: [{ pageToken: 'none' }] }),
  },
  updateTrajectory: {
    requests: ({ id }) => [
      [
        {
          trajectoryId: id,
          updateMask: { paths: ['name', 'labels', 'metadata_json', 'metrics'] },
          name: 'renamed',
          labels: { other: '1' },
          metadataJson: '[]',
          metrics: { score: 1 },
        },
      ],
    ],
    served: ([answer]) => {
      const after = { name: 'renamed', labels: { other: '1' }, metadataJson: '[]', metrics: { score: 1 } };
      expect(answer?.trajectory).toMatchObject({ ...after, nextStepNumber: 4n });
    },
    refused: () => ({ TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY, updateMask: { paths: ['name'] } }] }),
  },
  deleteTrajectory: {
    requests: ({ id }) => [[{ trajectoryId: id, onBranches: OnBranches.KEEP_SHARED }]],
    served: ([answer]) => expect(answer).toMatchObject({ purgedTrajectories: 0n, keptShared: true }),
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      HAS_BRANCHES: [{ trajectoryId: id }],
    }),
  },
  appendSteps: {
    requests: ({ id, uid }) => [
      [
        { open: { trajectoryId: id, uid, writerId: 'one', takeOverEpoch: 7n, expectedNextStepNumber: 4n } },
        { steps: [richStep(4n), { stepNumber: 5n }], seal: { status: Status.FAILED, message: 'gave up' } },
      ],
    ],
    served: (answers) => {
      expect(answers[0]?.opened).toMatchObject({ epoch: 1n, nextStepNumber: 4n, status: Status.RUNNING });
      expect(answers.at(-2)?.ack).toMatchObject({ nextStepNumber: 6n, duplicateSteps: 0n });
      expect(answers.at(-1)?.sealed).toMatchObject({ status: Status.FAILED, message: 'gave up', nextStepNumber: 6n });
    },
    refused: (scene) => {
      const open = { open: { trajectoryId: scene.id, writerId: 'one' } };
      return {
        TRAJECTORY_NOT_FOUND: [{ open: { trajectoryId: NOBODY, writerId: 'one' } }],
        UNEXPECTED_POSITION: [{ open: { ...open.open, expectedNextStepNumber: 3n } }],
        STEP_GAP: [open, { steps: [{ stepNumber: 5n }] }],
        STEP_CONFLICT: [open, { steps: [{ stepNumber: 0n }] }],
        TRAJECTORY_SEALED: [
          { open: { trajectoryId: scene.branchId, writerId: 'one' } },
          { steps: [{ stepNumber: 3n }] },
        ],
        STATE_NOT_FOUND: [open, { steps: [{ stepNumber: 4n, states: [{ digest: NO_STATE }] }] }],
        DIGEST_MISMATCH: [open, { steps: [{ stepNumber: 4n, states: [{ data: bytes('x'), digest: NO_STATE }] }] }],
        WRITER_FENCED: async () => [{ open: { trajectoryId: await held(scene), writerId: 'late' } }],
      };
    },
  },
  appendStep: {
    requests: async (scene) => [
      [{ trajectoryId: await held(scene), uid: scene.uid, writerEpoch: 1n, step: richStep(4n) }],
    ],
    served: ([answer]) => expect(answer).toMatchObject({ nextStepNumber: 5n }),
    refused: (scene) => {
      const { id, uid, branchId } = scene;
      const step = { stepNumber: 4n };
      return {
        TRAJECTORY_NOT_FOUND: [{ trajectoryId: id, uid: NOBODY, step }],
        STEP_GAP: [{ trajectoryId: id, uid, step: { stepNumber: 6n } }],
        STEP_CONFLICT: [{ trajectoryId: id, step: { stepNumber: 0n } }],
        TRAJECTORY_SEALED: [{ trajectoryId: branchId, step }],
        STATE_NOT_FOUND: [
          { trajectoryId: id, step: { ...step, observations: [{ content: { stateDigest: NO_STATE } }] } },
        ],
        DIGEST_MISMATCH: [{ trajectoryId: id, step: { ...step, states: [{ data: bytes('x'), digest: NO_STATE }] } }],
        WRITER_FENCED: async () => [{ trajectoryId: await held(scene), step }],
      };
    },
  },
  sealTrajectory: {
    requests: async (scene) => [
      [
        {
          trajectoryId: await held(scene),
          uid: scene.uid,
          writerEpoch: 1n,
          seal: { status: Status.CANCELLED, message: 'enough' },
        },
      ],
    ],
    served: ([answer]) => {
      expect(answer?.trajectory).toMatchObject({
        status: Status.CANCELLED,
        statusMessage: 'enough',
        nextStepNumber: 4n,
      });
      expect(answer?.trajectory?.sealTime).toBeDefined();
    },
    refused: (scene) => {
      const seal = { status: Status.FAILED };
      return {
        TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY, seal }],
        TRAJECTORY_SEALED: [{ trajectoryId: scene.branchId, seal }],
        WRITER_FENCED: async () => [{ trajectoryId: await held(scene), seal }],
      };
    },
  },
  attachState: {
    requests: async (scene) => [
      [
        {
          trajectoryId: await held(scene),
          uid: scene.uid,
          writerEpoch: 1n,
          stepNumber: 3n,
          state: { name: 'late', digest: scene.put, mediaType: 'text/plain' },
        },
      ],
    ],
    served: ([answer], { task, put }) => {
      const size = BigInt(task.length);
      expect(answer?.state).toMatchObject({ name: 'late', digest: put, mediaType: 'text/plain', size });
    },
    refused: (scene) => {
      const { id, branchId } = scene;
      const state = { data: bytes('x') };
      return {
        TRAJECTORY_NOT_FOUND: [{ trajectoryId: id, uid: NOBODY, stepNumber: 3n, state }],
        STEP_NOT_FOUND: [{ trajectoryId: branchId, stepNumber: 0n, state }],
        STATE_NOT_FOUND: [{ trajectoryId: id, stepNumber: 3n, state: { digest: NO_STATE } }],
        STATE_CONFLICT: [{ trajectoryId: id, stepNumber: 1n, state }],
        DIGEST_MISMATCH: [{ trajectoryId: id, stepNumber: 3n, state: { ...state, digest: NO_STATE } }],
        WRITER_FENCED: async () => [{ trajectoryId: await held(scene), stepNumber: 3n, state }],
      };
    },
  },
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
        },
      ],
    ],
    served: ([answer], { id, task }) => {
      const made = { parentId: id, branchPoint: 2n, treeId: id, taskId: task, nextStepNumber: 3n, rewardSum: 3 };
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
      [{ trajectoryId: branchId, startStepNumber: 1n, endStepNumber: 2n, view: View.BASIC, follow: true }],
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
  listSteps: {
    requests: async ({ id, task, trajectories }) => {
      const first = await trajectories.listSteps({ taskId: task, pageSize: 4 });
      const filter = { terminalOnly: true, minReward: 3, maxReward: 3, commitTimeFrom: LONG_AGO, commitTimeTo: LATE };
      const order = { order: StepOrder.REWARD, descending: true, view: View.FULL };
      return [
        [{ trajectoryId: id, ...filter, ...order, pageSize: 1 }],
        [{ trajectoryId: id, hasState: 'memory', hasAnyState: true }],
        [{ taskId: task, pageSize: 4, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer], { id }) => {
      expect(answer?.steps.map(({ trajectoryId, step }) => [trajectoryId, step?.stepNumber])).toEqual([[id, 3n]]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
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
        trajectory: { id: branchId, parentId: id, branchPoint: 1n, status: Status.COMPLETED },
        deleted: false,
      };
      expect(answer?.nodes).toMatchObject([node]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ trajectoryId: id, pageToken: 'none' }],
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
  getTag: {
    requests: ({ id }) => [[{ trajectoryId: id, name: 'here' }]],
    served: ([answer], { id }) => {
      expect(answer?.tag).toMatchObject({ trajectoryId: id, name: 'here', stepNumber: 1n });
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY, name: 'here' }],
      TAG_NOT_FOUND: [{ trajectoryId: id, name: 'nowhere' }],
    }),
  },
  listTags: {
    requests: async ({ id, trajectories }) => {
      await trajectories.setTag({ trajectoryId: id, name: 'there', stepNumber: 2n });
      const first = await trajectories.listTags({ trajectoryId: id, pageSize: 1 });
      return [[{ trajectoryId: id, pageSize: 1, pageToken: first.nextPageToken }]];
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
};

export const STATE_RPCS: Rpcs<typeof StateService.method> = {
  putState: {
    requests: () => [[{ digest: sha256(bytes('two chunks')), chunk: bytes('two ') }, { chunk: bytes('chunks') }]],
    served: ([answer]) => {
      expect(answer?.state).toMatchObject({ digest: sha256(bytes('two chunks')), size: 10n });
    },
    refused: () => ({
      DIGEST_MISMATCH: [{ digest: NO_STATE, chunk: bytes('x') }],
      INVALID_REQUEST: [{ chunk: bytes('x') }, { digest: NO_STATE }],
    }),
  },
  getState: {
    requests: ({ put }) => [[{ digest: put, offset: 2n, length: 3n }]],
    served: (answers, { put, task }) => {
      expect(answers[0]?.state).toMatchObject({ digest: put, size: BigInt(task.length) });
      expect(Buffer.concat(answers.map(({ chunk }) => chunk)).toString()).toBe(task.slice(2, 5));
    },
    refused: ({ put }) => ({
      STATE_NOT_FOUND: [{ digest: NO_STATE }],
      RANGE_BEYOND_END: [{ digest: put, offset: 1_000n }],
    }),
  },
  batchGetStates: {
    requests: ({ put }) => [[{ digests: [NO_STATE, put] }]],
    served: ([answer], { put, task }) => {
      expect(answer?.states).toMatchObject([{ digest: put, size: BigInt(task.length) }]);
    },
    refused: () => ({ INVALID_REQUEST: [{ digests: [] }] }),
  },
  readStates: {
    requests: ({ branchId }) => [
      [{ trajectoryId: branchId, startStepNumber: 1n, endStepNumber: 3n, name: 'env', every: 2n }],
      [{ trajectoryId: branchId }],
    ],
    served: (answers, { id, branchId }) => {
      const texts = answers.flatMap(({ trajectoryId, pieces }) =>
        pieces.map(({ stepNumber, data }) => [trajectoryId, stepNumber, Buffer.from(data).toString()]),
      );
      expect(texts).toEqual([
        [id, 1n, 'one'],
        [branchId, 2n, 'other'],
      ]);
    },
    refused: ({ id }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      RANGE_BEYOND_END: [{ trajectoryId: id, startStepNumber: 5n }],
    }),
  },
};
