import { randomUUID } from 'node:crypto';
import { Code } from '@connectrpc/connect';
import { expect } from 'vitest';
import { OnSuccess } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { type BadCall, INVALID } from './bad_call.ts';
import type { RolloutScene } from './rpcs/rollout_scene.ts';
import { NOBODY } from './rpcs/scene.ts';
import { collect } from './story.ts';

type Bad = BadCall<RolloutScene>;

const NOT_FOUND = { code: Code.NotFound } as const;
const LEASE_LOST = { code: Code.FailedPrecondition, reason: 'LEASE_LOST' } as const;
const ILLEGAL = { code: Code.FailedPrecondition, reason: 'ILLEGAL_TRANSITION' } as const;

/** The `rollouts` of a call that has one valid entry before the invalid one: nothing of it may be stored. */
function after(bad: object) {
  return [
    { groupNumber: 9n, number: 0n },
    { groupNumber: 9n, number: 1n, ...bad },
  ];
}

export const MAKING: readonly Bad[] = [
  {
    what: 'rollouts in a stage that is a run',
    call: ({ rollouts, runId }) => rollouts.createRollouts({ stageId: runId, rollouts: after({}) }),
    ...NOT_FOUND,
    reason: 'STAGE_NOT_FOUND',
    field: 'stage_id',
  },
  {
    what: 'group in a stage that is a group',
    call: ({ rollouts, endedGroupId }) => rollouts.upsertGroup({ stageId: endedGroupId, number: 0n }),
    ...NOT_FOUND,
    reason: 'STAGE_NOT_FOUND',
    field: 'stage_id',
  },
  {
    what: 'task that is not in the catalogue',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: after({ taskId: 'nobody' }) }),
    ...NOT_FOUND,
    reason: 'TASK_NOT_FOUND',
    field: 'rollouts[1].task_id',
    metadata: { task: 'nobody' },
  },
  {
    what: 'start point on an unknown trajectory',
    call: ({ rollouts, stageId }) =>
      rollouts.createRollouts({
        stageId,
        rollouts: after({ startFrom: { trajectoryId: NOBODY, stepNumber: 0n } }),
      }),
    ...NOT_FOUND,
    reason: 'TRAJECTORY_NOT_FOUND',
    field: 'rollouts[1].start_from.trajectory_id',
    metadata: { trajectory_id: NOBODY },
  },
  {
    what: 'start point beyond the end',
    call: ({ rollouts, stageId, mainId }) =>
      rollouts.createRollouts({
        stageId,
        rollouts: after({ startFrom: { trajectoryId: mainId, stepNumber: 4n } }),
      }),
    code: Code.OutOfRange,
    reason: 'BRANCH_POINT_BEYOND_END',
    field: 'rollouts[1].start_from.step_number',
  },
  {
    what: 'start point beyond the end, together with a valid one at the same step',
    call: async ({ rollouts, stageId, mainId, trajectories }) => {
      const { trajectory } = await trajectories.createTrajectory({ root: {} });
      const at = (trajectoryId: string) => ({ startFrom: { trajectoryId, stepNumber: 1n } });
      const both = [
        { groupNumber: 9n, number: 0n, ...at(mainId) },
        { groupNumber: 9n, number: 1n, ...at(trajectory!.id) },
      ];
      return rollouts.createRollouts({ stageId, rollouts: both });
    },
    code: Code.OutOfRange,
    reason: 'BRANCH_POINT_BEYOND_END',
    text: 'step_number 1 is not a step of trajectory',
  },
  {
    what: 'start point without its step',
    call: ({ rollouts, stageId, mainId }) =>
      rollouts.createRollouts({ stageId, rollouts: after({ startFrom: { trajectoryId: mainId } }) }),
    ...INVALID,
    field: 'rollouts[1].start_from.step_number',
  },
  {
    what: 'negative priority',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: after({ priority: -1 }) }),
    ...INVALID,
    field: 'rollouts[1].priority',
  },
  {
    what: 'priority beyond a million',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: after({ priority: 1_000_001 }) }),
    ...INVALID,
    field: 'rollouts[1].priority',
  },
  {
    what: 'more attempts than the limit',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: after({ maxAttempts: 101 }) }),
    ...INVALID,
    field: 'rollouts[1].max_attempts',
  },
  ...(
    [
      ['timeout of attempts below one second', { attemptTimeout: { nanos: 999_000_000 } }, 'attempt_timeout'],
      ['timeout of attempts of 0', { attemptTimeout: {} }, 'attempt_timeout'],
      ['timeout of attempts above 30 days', { attemptTimeout: { seconds: 2_592_001n } }, 'attempt_timeout'],
      [
        'timeout of attempts that exceeds the limit when rounded up',
        { attemptTimeout: { seconds: 2_592_000n, nanos: 1 } },
        'attempt_timeout',
      ],
      ['negative delay before the next attempt', { retryDelay: { seconds: -1n } }, 'retry_delay'],
      [
        'delay before the next attempt of more than an hour',
        { retryDelay: { seconds: 3600n, nanos: 1 } },
        'retry_delay',
      ],
    ] as const
  ).map(([what, fields, field]) => ({
    what,
    call: ({ rollouts, stageId }: RolloutScene) => rollouts.createRollouts({ stageId, rollouts: after(fields) }),
    ...INVALID,
    field: `rollouts[1].${field}`,
  })),
  {
    what: 'rollout without a number and without a request id',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: after({ number: undefined }) }),
    ...INVALID,
    field: 'request_id',
  },
  {
    what: 'rollout without a number beside the largest one',
    call: ({ rollouts, stageId }) => {
      const both = [{ groupNumber: 9n }, { groupNumber: 9n, number: 2n ** 63n - 1n }];
      return rollouts.createRollouts({ stageId, rollouts: both, requestId: randomUUID() });
    },
    ...INVALID,
    field: 'rollouts[0].number',
  },
  {
    what: 'same group number and number twice',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: after({ number: 0n }) }),
    ...INVALID,
    field: 'rollouts[1].number',
  },
  {
    what: 'same id twice',
    call: ({ rollouts, stageId }) => {
      const rolloutId = '0198a0b0-0000-7000-8000-00000000000a';
      const twice = [
        { groupNumber: 9n, number: 0n, rolloutId },
        { groupNumber: 9n, number: 1n, rolloutId: rolloutId.toUpperCase() },
      ];
      return rollouts.createRollouts({ stageId, rollouts: twice });
    },
    ...INVALID,
    field: 'rollouts[1].rollout_id',
  },
  {
    what: 'two policies of one group',
    call: ({ rollouts, stageId }) =>
      rollouts.createRollouts({
        stageId,
        rollouts: [
          { groupNumber: 9n, number: 0n, onSuccess: OnSuccess.CANCEL_PENDING },
          { groupNumber: 9n, number: 1n },
          { groupNumber: 9n, number: 2n, onSuccess: OnSuccess.CONTINUE },
        ],
      }),
    ...INVALID,
    field: 'rollouts[2].on_success',
  },
  {
    what: 'input that is not JSON',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: after({ inputJson: '{a:1}' }) }),
    ...INVALID,
    field: 'rollouts[1].input_json',
  },
  {
    what: 'no rollouts',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId }),
    ...INVALID,
    field: 'rollouts',
  },
  {
    what: 'one rollout too many',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: manyRollouts(1001) }),
    ...INVALID,
    field: 'rollouts',
  },
  {
    what: 'one rollout too many that is claimed',
    call: ({ rollouts, stageId }) => {
      const claim = { workerId: 'w' };
      return rollouts.createRollouts({ stageId, rollouts: manyRollouts(101), claim, requestId: randomUUID() });
    },
    ...INVALID,
    field: 'rollouts',
  },
  {
    what: 'claimed rollout without a request id',
    call: ({ rollouts, stageId }) =>
      rollouts.createRollouts({ stageId, rollouts: after({}), claim: { workerId: 'w' } }),
    ...INVALID,
    field: 'request_id',
  },
  {
    what: 'claim without a worker',
    call: ({ rollouts, stageId }) =>
      rollouts.createRollouts({ stageId, rollouts: after({}), claim: {}, requestId: randomUUID() }),
    ...INVALID,
    field: 'claim.worker_id',
  },
  {
    what: 'a quarter of a million rollouts in one call',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: manyRollouts(250_000) }),
    code: Code.ResourceExhausted,
    reason: 'MESSAGE_TOO_LARGE',
    text: 'larger than 1048576 bytes: send fewer steps, points or rollouts',
  },
  {
    what: 'id of another rollout',
    call: ({ rollouts, stageId, doneId }) =>
      rollouts.createRollouts({ stageId, rollouts: after({ rolloutId: doneId }) }),
    code: Code.AlreadyExists,
    reason: 'ROLLOUT_EXISTS',
    field: 'rollouts[1].rollout_id',
    metadata: { rollout: expect.stringMatching(/^[0-9a-f-]{36}$/) },
  },
];

function manyRollouts(count: number) {
  return Array.from({ length: count }, (_, i) => ({ groupNumber: 9n, number: BigInt(i) }));
}

export const CATALOGUE: readonly Bad[] = [
  {
    what: 'task twice in a call',
    call: ({ rollouts }) => rollouts.upsertTasks({ tasks: [{ id: 'twice' }, { id: 'twice', name: 'again' }] }),
    ...INVALID,
    field: 'tasks[1].id',
  },
  {
    what: 'task without an id',
    call: ({ rollouts }) => rollouts.upsertTasks({ tasks: [{ name: 'nameless' }] }),
    ...INVALID,
    field: 'tasks[0].id',
  },
  {
    what: 'validator that is created and removed in a call',
    call: ({ rollouts, taskId }) =>
      rollouts.upsertTasks({ tasks: [{ id: taskId, validators: { new: {} }, removedValidators: ['old', 'new'] }] }),
    ...INVALID,
    field: 'tasks[0].removed_validators[1]',
  },
  {
    what: 'more validators of a task than the limit, in two calls',
    call: async ({ rollouts, taskId }) => {
      const types = (prefix: string, count: number) =>
        Object.fromEntries(Array.from({ length: count }, (_, i) => [`${prefix}${i}`, {}]));
      return rollouts.upsertTasks({ tasks: [{ id: 'other' }, { id: taskId, validators: types('new', 15) }] });
    },
    ...INVALID,
    field: 'tasks[1].validators',
    text: 'would result in 17 validators, and the maximum is 16',
  },
  {
    what: 'larger validators of a task than the limit',
    call: ({ rollouts, taskId }) => {
      const configJson = JSON.stringify('c'.repeat(60_000));
      const types = ['a', 'b', 'c', 'd', 'e'].map((type) => [type, { configJson }]);
      return rollouts.upsertTasks({ tasks: [{ id: taskId, validators: Object.fromEntries(types) }] });
    },
    ...INVALID,
    field: 'tasks[0].validators',
  },
  {
    what: 'group named by id and by number',
    call: ({ rollouts, liveGroupId }) => rollouts.getGroup({ groupId: liveGroupId, number: 1n }),
    ...INVALID,
    field: 'number',
  },
  {
    what: 'group without a name',
    call: ({ rollouts }) => rollouts.getGroup({}),
    ...INVALID,
    field: 'group_id',
  },
];

export const LEASES: readonly Bad[] = [
  ...[
    { lease: { seconds: 0n, nanos: 999_999_999 }, what: 'lease of less than a second' },
    { lease: { seconds: 86_400n, nanos: 1 }, what: 'lease of more than a day' },
    { lease: { seconds: -5n }, what: 'negative lease' },
  ].flatMap(({ lease: leaseDuration, what }): Bad[] => [
    {
      what,
      call: ({ rollouts, stageId }) => rollouts.claimRollouts({ stageId, workerId: 'w', leaseDuration }),
      ...INVALID,
      field: 'lease_duration',
    },
    {
      what: `creation with a ${what}`,
      call: ({ rollouts, stageId }) =>
        rollouts.createRollouts({
          stageId,
          rollouts: after({}),
          claim: { workerId: 'w', leaseDuration },
          requestId: randomUUID(),
        }),
      ...INVALID,
      field: 'claim.lease_duration',
    },
    {
      what: `heartbeat for a ${what}`,
      call: ({ rollouts, heldId }) =>
        rollouts.heartbeatRollouts({ leases: [{ rolloutId: heldId, attempt: 1 }], leaseDuration }),
      ...INVALID,
      field: 'lease_duration',
    },
  ]),
  {
    what: 'claim of something that is not an id',
    call: ({ rollouts, heldId }) => rollouts.claimRollouts({ workerId: 'w', rolloutIds: [heldId, 'x'] }),
    ...INVALID,
    field: 'rollout_ids[1]',
  },
  {
    what: 'claim of 101 rollouts by id',
    call: ({ rollouts }) =>
      rollouts.claimRollouts({ workerId: 'w', rolloutIds: Array.from({ length: 101 }, () => randomUUID()) }),
    ...INVALID,
    field: 'rollout_ids',
  },
  {
    what: 'wait of more than 30 s',
    call: ({ rollouts, stageId }) => rollouts.claimRollouts({ stageId, workerId: 'w', wait: { seconds: 31n } }),
    ...INVALID,
    field: 'wait',
  },
  {
    what: 'negative minimum priority',
    call: ({ rollouts, stageId }) => rollouts.claimRollouts({ stageId, workerId: 'w', minPriority: -1 }),
    ...INVALID,
    field: 'min_priority',
  },
  {
    what: 'claim of more than a hundred',
    call: ({ rollouts, stageId }) => rollouts.claimRollouts({ stageId, workerId: 'w', maxRollouts: 101 }),
    ...INVALID,
    field: 'max_rollouts',
  },
  {
    what: 'claim without a worker',
    call: ({ rollouts, stageId }) => rollouts.claimRollouts({ stageId }),
    ...INVALID,
    field: 'worker_id',
  },
  {
    what: 'claim of a stage with the id of a run',
    call: ({ rollouts, runId }) => rollouts.claimRollouts({ stageId: runId, workerId: 'w' }),
    ...NOT_FOUND,
    reason: 'STAGE_NOT_FOUND',
    field: 'stage_id',
  },
  {
    what: 'attempt that does not exist yet',
    call: ({ rollouts, heldId }) => rollouts.startRollout({ rolloutId: heldId, attempt: 2 }),
    ...LEASE_LOST,
    metadata: { attempt: '1', status: 'INITIALIZING' },
  },
  {
    what: 'attempt of another rollout',
    call: ({ rollouts, pendingId }) => rollouts.completeRollout({ rolloutId: pendingId, attempt: 1 }),
    ...LEASE_LOST,
    metadata: { attempt: '0', status: 'PENDING' },
  },
  {
    what: 'claim of a stage of another run',
    call: async ({ runs, rollouts, stageId }) => {
      const { run } = await runs.createRun({});
      return rollouts.claimRollouts({ runId: run!.id, stageId, workerId: 'w' });
    },
    ...NOT_FOUND,
    reason: 'STAGE_NOT_FOUND',
    field: 'stage_id',
    text: 'has no stage',
  },
  {
    what: 'missing attempt',
    call: ({ rollouts, heldId }) => rollouts.completeRollout({ rolloutId: heldId }),
    ...INVALID,
    field: 'attempt',
  },
  {
    what: 'change by an attempt that does not hold the rollout',
    call: ({ rollouts, heldId }) =>
      rollouts.updateRollout({ rolloutId: heldId, attempt: 3, updateMask: { paths: ['priority'] } }),
    ...LEASE_LOST,
  },
  {
    what: 'phase by an attempt that does not hold the rollout',
    call: ({ rollouts, heldId }) =>
      rollouts.updateRollout({ rolloutId: heldId, attempt: 3, updateMask: { paths: ['phase'] }, phase: 'env' }),
    ...LEASE_LOST,
  },
  {
    what: 'phase without an attempt',
    call: ({ rollouts, heldId }) =>
      rollouts.updateRollout({ rolloutId: heldId, updateMask: { paths: ['phase'] }, phase: 'env' }),
    ...INVALID,
    field: 'attempt',
  },
  {
    what: 'metrics of an attempt that has not started',
    call: ({ rollouts, heldId }) =>
      rollouts.updateRollout({ rolloutId: heldId, attempt: 3, updateMask: { paths: ['metrics'] }, metrics: { a: 1 } }),
    ...{ code: Code.FailedPrecondition, reason: 'NO_ATTEMPT', text: 'must be 1 to 1' },
  },
];

export const ENDS: readonly Bad[] = [
  {
    what: 'two verdicts of one name',
    call: ({ rollouts, runningId }) =>
      rollouts.completeRollout({
        rolloutId: runningId,
        attempt: 1,
        validations: [
          { name: 'free', success: true },
          { name: 'free', success: false },
        ],
      }),
    ...INVALID,
    field: 'validations[1].name',
    text: 'must be unique, but "free" occurs twice',
  },
  ...['', 'n'.repeat(129), 'ü'.repeat(65), 'nul \u0000'].map((name) => ({
    what: `verdict under the name ${JSON.stringify(name.slice(0, 9))}, ${name.length} characters`,
    call: ({ rollouts, runningId }: RolloutScene) =>
      rollouts.recordValidation({ rolloutId: runningId, validation: { name, success: true } }),
    ...INVALID,
    field: 'validation.name',
  })),
  {
    what: 'metrics of a failure with an invalid name',
    call: ({ rollouts, runningId }) => rollouts.failRollout({ rolloutId: runningId, attempt: 1, metrics: { '': 1 } }),
    ...INVALID,
    field: 'metrics[""]',
  },
  {
    what: 'verdict without success',
    call: ({ rollouts, runningId }) =>
      rollouts.recordValidation({ rolloutId: runningId, validation: { name: 'state' } }),
    ...INVALID,
    field: 'validation.success',
  },
  {
    what: 'override without a reason',
    call: ({ rollouts, doneId }) => rollouts.overrideValidation({ rolloutId: doneId, success: true }),
    ...INVALID,
    field: 'reason',
  },
  {
    what: 'unexpected end of the trajectory',
    call: ({ rollouts, runningId }) =>
      rollouts.completeRollout({ rolloutId: runningId, attempt: 1, expectedNextStepNumber: 7n }),
    code: Code.FailedPrecondition,
    reason: 'UNEXPECTED_POSITION',
    metadata: { next_step_number: '0' },
  },
  {
    what: 'too many errors',
    call: ({ rollouts, runningId }) =>
      rollouts.failRollout({
        rolloutId: runningId,
        attempt: 1,
        result: { errors: Array.from({ length: 33 }, () => 'e'.repeat(4096)) },
      }),
    ...INVALID,
    field: 'result.errors',
  },
  {
    what: 'summary that is not JSON',
    call: ({ rollouts, runningId }) =>
      rollouts.completeRollout({ rolloutId: runningId, attempt: 1, result: { summaryJson: '{' } }),
    ...INVALID,
    field: 'result.summary_json',
  },
  {
    what: 'release of an ended rollout',
    call: ({ rollouts, doneId }) => rollouts.releaseRollout({ rolloutId: doneId, attempt: 1 }),
    ...ILLEGAL,
  },
  {
    what: 'retry of a rollout that has not ended',
    call: ({ rollouts, heldId }) => rollouts.retryRollout({ rolloutId: heldId, attempt: 1 }),
    ...ILLEGAL,
  },
  {
    what: 'environment that does not exist',
    call: ({ rollouts, heldId }) =>
      rollouts.updateRollout({
        rolloutId: heldId,
        updateMask: { paths: ['priority', 'environment_ids'] },
        priority: 9,
        environmentIds: [NOBODY],
      }),
    ...NOT_FOUND,
    reason: 'ENVIRONMENT_NOT_FOUND',
  },
  {
    what: 'change of a field that cannot be changed',
    call: ({ rollouts, heldId }) => rollouts.updateRollout({ rolloutId: heldId, updateMask: { paths: ['status'] } }),
    ...INVALID,
    field: 'update_mask',
  },
  {
    what: 'one metric too many',
    call: ({ rollouts, heldId }) =>
      rollouts.updateRollout({
        rolloutId: heldId,
        updateMask: { paths: ['metrics'] },
        metrics: Object.fromEntries(Array.from({ length: 257 }, (_, i) => [`m${i}`, i])),
      }),
    ...INVALID,
    field: 'metrics',
  },
  {
    what: 'environment without an id',
    call: ({ rollouts, runId }) => rollouts.upsertEnvironment({ runId, type: 'android' }),
    ...INVALID,
    field: 'environment_id',
  },
];

export const READS: readonly Bad[] = [
  {
    what: 'rollouts without a parent, task or worker',
    call: ({ rollouts }) => rollouts.listRollouts({ labels: { a: 'b' } }),
    ...INVALID,
    field: 'run_id',
    text: 'none of run_id, stage_id, group_id, task_id and worker_id is set',
  },
  {
    what: 'rollouts of a run and of a stage',
    call: ({ rollouts, runId, stageId }) => rollouts.listRollouts({ runId, stageId }),
    ...INVALID,
    field: 'run_id',
  },
  {
    what: 'page token of another worker',
    call: async ({ rollouts, taskId }) => {
      const { nextPageToken } = await rollouts.listRollouts({ taskId, workerId: 'worker', pageSize: 1 });
      return rollouts.listRollouts({ taskId, workerId: 'other', pageSize: 1, pageToken: nextPageToken });
    },
    code: Code.InvalidArgument,
    reason: 'INVALID_PAGE_TOKEN',
  },
  {
    what: 'minimum reward that is NaN',
    call: ({ rollouts, stageId }) => rollouts.listRollouts({ stageId, minReward: Number.NaN }),
    ...INVALID,
    field: 'min_reward',
  },
  {
    what: 'page token of another list',
    call: async ({ rollouts, stageId, runId }) => {
      const { nextPageToken } = await rollouts.listRollouts({ stageId, pageSize: 1 });
      return rollouts.listRollouts({ runId, pageSize: 1, pageToken: nextPageToken });
    },
    code: Code.InvalidArgument,
    reason: 'INVALID_PAGE_TOKEN',
  },
  {
    what: 'reading rollouts without a stage',
    call: ({ rollouts, runId }) => collect(rollouts.readRollouts({ stageId: runId })),
    ...NOT_FOUND,
    reason: 'STAGE_NOT_FOUND',
  },
  {
    what: 'dimension with a key and a label',
    call: ({ runs }) => runs.summarize({ dimensions: [{ key: SummaryKey.TASK, label: 'model' }] }),
    ...INVALID,
    field: 'dimensions[0].label',
  },
  {
    what: 'invalid dimension',
    call: ({ runs }) => runs.summarize({ dimensions: [{ label: 'model' }, {}] }),
    ...INVALID,
    field: 'dimensions[1].key',
  },
  {
    what: 'same dimension twice',
    call: ({ runs }) => runs.summarize({ dimensions: [{ label: 'model' }, { label: 'model' }] }),
    ...INVALID,
    field: 'dimensions[1]',
  },
  {
    what: 'pass@k with k = 0',
    call: ({ runs }) => runs.summarize({ passAt: [0] }),
    ...INVALID,
    field: 'pass_at[0]',
  },
  {
    what: 'history of two resources',
    call: ({ runs, runId, heldId }) => runs.listStatusChanges({ runId, rolloutId: heldId }),
    ...INVALID,
    field: 'run_id',
  },
  {
    what: 'deletion of a run with live rollouts',
    call: ({ runs, runId }) => runs.deleteRun({ runId }),
    code: Code.FailedPrecondition,
    reason: 'RUN_ACTIVE',
    metadata: { rollouts: '2' },
  },
];
