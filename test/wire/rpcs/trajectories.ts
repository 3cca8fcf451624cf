import { randomUUID } from 'node:crypto';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { expect } from 'vitest';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { IfExists, ListOrder, type StepSchema, View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ListTrajectoriesRequestSchema,
  OnBranches,
  type TrajectoryCreationSchema,
  type TrajectoryService,
  UpdateTrajectoryRequestSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { AppendCall } from '../append-call.ts';
import { bytes, LABELS, LATE, LONG_AGO, NO_STATE, NOBODY, type Rpcs, richStep, type Scene } from './scene.ts';
import { pathsOf } from './shown.ts';
import { TRAJECTORY_READS } from './trajectory_reads.ts';

/** The scene's trajectory, granted to writer `one`. */
async function held({ trajectories, id }: Scene): Promise<string> {
  const { call } = await AppendCall.open(trajectories, { trajectoryId: id, writerId: 'one' });
  await call.close();
  return id;
}

/** A root to create when it is opened. */
function creation(taskId: string) {
  return {
    trajectoryId: randomUUID(),
    requestId: randomUUID(),
    name: 'made',
    taskId,
    labels: LABELS,
    metadataJson: '{}',
    scoredMetrics: ['score'],
    root: { ...richStep(1n), stepNumber: 0n },
  };
}

/** A branch to create when it is opened. */
function branching(trajectoryId: string) {
  return {
    trajectoryId,
    stepNumber: 2n,
    branchId: randomUUID(),
    requestId: randomUUID(),
    name: 'new branch',
    labels: LABELS,
    metadataJson: '1',
    scoredMetrics: ['score'],
  };
}

/** The first message of a stream that creates its trajectory. */
function creating(create: MessageInitShape<typeof TrajectoryCreationSchema>) {
  const { trajectory, branch } = create;
  const trajectoryId = trajectory?.trajectoryId ?? branch?.branchId ?? '';
  return { open: { trajectoryId, writerId: 'one', create } };
}

/** Requests of ListTrajectories, and of its watch. */
async function listRequests({ task, runId, experimentId, id, trajectories }: Scene) {
  const first = await trajectories.listTrajectories({ taskId: task, pageSize: 1 });
  const branches = {
    runId,
    experimentId,
    taskId: task,
    parentId: id,
    treeId: id,
    branchPoint: 1n,
    statuses: [Status.COMPLETED],
  };
  const times = { createTimeFrom: LONG_AGO, createTimeTo: LATE };
  const lists: MessageInitShape<typeof ListTrajectoriesRequestSchema>[] = [
    { ...branches, ...times, labels: LABELS, name: 'branch', text: 'RANCH', view: View.FULL, pageSize: 1 },
    { taskId: task, order: ListOrder.REWARD, ascending: true },
    { rootsOnly: true, taskId: task },
    { withoutRun: true, pageSize: 1 },
    { taskId: task, pageSize: 1, pageToken: first.nextPageToken },
  ];
  return lists;
}

export const TRAJECTORY_RPCS: Rpcs<typeof TrajectoryService.method> = {
  createTrajectory: {
    requests: ({ task, runId, experimentId }) => [
      [
        {
          trajectoryId: randomUUID(),
          requestId: randomUUID(),
          name: 'made',
          taskId: task,
          runId,
          experimentId,
          labels: LABELS,
          metadataJson: '{}',
          scoredMetrics: ['score'],
          root: { ...richStep(1n), stepNumber: 0n },
          ifExists: IfExists.RETURN_EXISTING,
        },
      ],
    ],
    served: ([answer], { task, runId, experimentId }) => {
      const made = { name: 'made', taskId: task, runId, experimentId, nextStepNumber: 1n, rewardSum: 0.5 };
      expect(answer?.trajectory).toMatchObject({ ...made, scoredMetrics: ['score'] });
    },
    refused: ({ id, trajectories }) => ({
      TRAJECTORY_EXISTS: [{ trajectoryId: id }],
      CONFIG_MISMATCH: [{ trajectoryId: id, name: 'another', ifExists: IfExists.RETURN_EXISTING }],
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
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      EXPERIMENT_NOT_FOUND: [{ experimentId: NOBODY }],
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
        branchRewardSum: 6,
      });
    },
    refused: () => ({ TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }] }),
  },
  listTrajectories: {
    requests: async (scene) => (await listRequests(scene)).map((list) => [list]),
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
          updateMask: { paths: pathsOf(UpdateTrajectoryRequestSchema) },
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
    requests: ({ id, uid, task, runId, experimentId }) => [
      [creating({ trajectory: { ...creation(task), runId, experimentId } })],
      [creating({ branch: branching(id) })],
      [creating({ branch: { ...branching(id), stepNumber: undefined, tag: 'here' } })],
      [
        { open: { trajectoryId: id, uid, writerId: 'one', takeOverEpoch: 7n, expectedNextStepNumber: 4n } },
        {
          steps: [richStep(4n), { stepNumber: 5n }],
          tags: [{ name: 'last', stepNumber: 5n }],
          seal: { status: Status.FAILED, message: 'gave up' },
        },
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
        TRAJECTORY_EXISTS: [creating({ trajectory: { ...creation(scene.task), trajectoryId: scene.id } })],
        REQUEST_ID_REUSED: async () => {
          const { requestId } = creation(scene.task);
          await scene.trajectories.createTrajectory({ requestId });
          return [creating({ trajectory: { ...creation(scene.task), requestId } })];
        },
        RUN_NOT_FOUND: [creating({ trajectory: { ...creation(scene.task), runId: NOBODY } })],
        EXPERIMENT_NOT_FOUND: [creating({ trajectory: { ...creation(scene.task), experimentId: NOBODY } })],
        TAG_NOT_FOUND: [creating({ branch: { ...branching(scene.id), stepNumber: undefined, tag: 'nowhere' } })],
        BRANCH_POINT_BEYOND_END: [creating({ branch: { ...branching(scene.id), stepNumber: 4n } })],
      };
    },
  },
  appendBatch: {
    requests: async (scene) => {
      const { id, uid, branchId, task, runId, experimentId } = scene;
      const root = { ...creation(task), runId, experimentId };
      const branch = branching(id);
      const tags = [{ name: 'last', stepNumber: 4n }];
      return [
        [
          {
            entries: [
              { trajectoryId: root.trajectoryId, writerId: 'two', create: { trajectory: root }, steps: [richStep(1n)] },
              {
                trajectoryId: branch.branchId,
                create: { branch },
                seal: { status: Status.FAILED, message: 'gave up' },
              },
            ],
          },
        ],
        [{ entries: [{ trajectoryId: branchId, writerId: 'two', takeOverEpoch: 0n }] }],
        [{ entries: [{ trajectoryId: await held(scene), uid, writerEpoch: 1n, steps: [richStep(4n)], tags }] }],
      ];
    },
    served: ([answer], { uid }) => {
      expect(answer?.results).toMatchObject([{ nextStepNumber: 5n, duplicateSteps: 0n, uid }]);
      expect(answer?.results[0]?.epoch).toBeUndefined();
      expect(answer?.results[0]?.commitTime).toBeDefined();
    },
    refused: (scene) => {
      const { id, branchId, task } = scene;
      const one = (...steps: MessageInitShape<typeof StepSchema>[]) => [{ entries: [{ trajectoryId: id, steps }] }];
      const make = (create: MessageInitShape<typeof TrajectoryCreationSchema>) => {
        const trajectoryId = create.trajectory?.trajectoryId ?? create.branch?.branchId ?? '';
        return [{ entries: [{ trajectoryId, create }] }];
      };
      return {
        TRAJECTORY_NOT_FOUND: [{ entries: [{ trajectoryId: NOBODY, steps: [{ stepNumber: 0n }] }] }],
        STEP_GAP: one({ stepNumber: 5n }),
        STEP_CONFLICT: one({ stepNumber: 0n }),
        TRAJECTORY_SEALED: [{ entries: [{ trajectoryId: branchId, steps: [{ stepNumber: 3n }] }] }],
        STATE_NOT_FOUND: one({ stepNumber: 4n, states: [{ digest: NO_STATE }] }),
        DIGEST_MISMATCH: one({ stepNumber: 4n, states: [{ data: bytes('x'), digest: NO_STATE }] }),
        INVALID_REQUEST: [{ entries: [{ trajectoryId: id }] }],
        TRAJECTORY_EXISTS: make({ trajectory: { ...creation(task), trajectoryId: id } }),
        REQUEST_ID_REUSED: async () => {
          const { requestId } = creation(task);
          await scene.trajectories.createTrajectory({ requestId });
          return make({ trajectory: { ...creation(task), requestId } });
        },
        RUN_NOT_FOUND: make({ trajectory: { ...creation(task), runId: NOBODY } }),
        EXPERIMENT_NOT_FOUND: make({ trajectory: { ...creation(task), experimentId: NOBODY } }),
        TAG_NOT_FOUND: make({ branch: { ...branching(id), stepNumber: undefined, tag: 'nowhere' } }),
        BRANCH_POINT_BEYOND_END: make({ branch: { ...branching(id), stepNumber: 4n } }),
        WRITER_FENCED: async () => [{ entries: [{ trajectoryId: await held(scene), steps: [{ stepNumber: 4n }] }] }],
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
  ...TRAJECTORY_READS,
};
