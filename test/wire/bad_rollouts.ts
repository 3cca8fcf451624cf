import { randomUUID } from 'node:crypto';
import { Code } from '@connectrpc/connect';
import { OnSuccess } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { type BadCall, INVALID } from './bad_call.ts';
import type { RolloutScene } from './rpcs/rollout_scene.ts';

type Bad = BadCall<RolloutScene>;

const NOT_FOUND = { code: Code.NotFound } as const;

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
    what: 'a quarter of a million rollouts in one call',
    call: ({ rollouts, stageId }) => rollouts.createRollouts({ stageId, rollouts: manyRollouts(250_000) }),
    code: Code.ResourceExhausted,
    reason: 'MESSAGE_TOO_LARGE',
    text: 'larger than 1048576 bytes: send fewer steps, points or rollouts',
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
  {
    what: 'phase without an attempt',
    call: ({ rollouts, heldId }) =>
      rollouts.updateRollout({ rolloutId: heldId, updateMask: { paths: ['phase'] }, phase: 'env' }),
    ...INVALID,
    field: 'attempt',
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
  {
    what: 'verdict without success',
    call: ({ rollouts, runningId }) =>
      rollouts.recordValidation({ rolloutId: runningId, validation: { name: 'state' } }),
    ...INVALID,
    field: 'validation.success',
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
    what: 'change of a field that cannot be changed',
    call: ({ rollouts, heldId }) => rollouts.updateRollout({ rolloutId: heldId, updateMask: { paths: ['status'] } }),
    ...INVALID,
    field: 'update_mask',
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
    what: 'minimum reward that is NaN',
    call: ({ rollouts, stageId }) => rollouts.listRollouts({ stageId, minReward: Number.NaN }),
    ...INVALID,
    field: 'min_reward',
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
    what: 'history of two resources',
    call: ({ runs, runId, heldId }) => runs.listStatusChanges({ runId, rolloutId: heldId }),
    ...INVALID,
    field: 'run_id',
  },
];
