/** Groups and rollouts of the run `lr 0.1` of run_samples.ts with fixed contents, served by a scripted server. */
import { create } from '@bufbuild/protobuf';
import { Code, type ServiceImpl } from '@connectrpc/connect';
import {
  type Group,
  GroupSchema,
  OnSuccess,
  type Rollout,
  RolloutSchema,
} from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import type { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type ReadScript, refusal } from '../client/scripted-peer.ts';
import { at, runId, STAGES, stageId, trajectoryId } from './run_samples.ts';

export const rolloutId = (n: number) => `01990000-0000-7000-8000-0000000004${String(n).padStart(2, '0')}`;
const groupId = (n: number) => `01990000-0000-7000-8000-0000000005${String(n).padStart(2, '0')}`;
const environmentId = (n: number) => `01990000-0000-7000-8000-0000000006${String(n).padStart(2, '0')}`;
const { PENDING, INITIALIZING, RUNNING, COMPLETED, FAILED, CANCELLED } = Status;

const of = (stage: number) => ({ runId: runId(2), stageId: stageId(stage) });

export const GROUPS: readonly Group[] = [
  {
    ...of(2),
    id: groupId(1),
    number: 0n,
    onSuccess: OnSuccess.CONTINUE,
    status: COMPLETED,
    statistics: {
      rolloutCount: 4n,
      completedCount: 3n,
      failedCount: 1n,
      judgedCount: 4n,
      successCount: 1n,
      rewardCount: 3n,
      successRate: 0.25,
      rewardMean: 6,
      rewardStd: 7.211102550927978,
      bestReward: 14,
      bestRolloutId: rolloutId(3),
    },
  },
  {
    ...of(4),
    id: groupId(2),
    number: 12n,
    onSuccess: OnSuccess.CANCEL_PENDING,
    status: RUNNING,
    statistics: {
      rolloutCount: 5n,
      pendingCount: 1n,
      liveCount: 2n,
      completedCount: 1n,
      cancelledCount: 1n,
      rewardCount: 1n,
      rewardMean: -0.5,
      bestReward: -0.5,
      bestRolloutId: rolloutId(5),
    },
  },
].map((group) => create(GroupSchema, group));

const open = { ...of(4), groupId: groupId(2), groupNumber: 12n, maxAttempts: 3 };
const done = {
  ...of(2),
  groupId: groupId(1),
  groupNumber: 0n,
  maxAttempts: 3,
  attempt: 1,
  taskId: 'settings/dark-mode',
};

export const ROLLOUTS: readonly Rollout[] = [
  { ...done, id: rolloutId(1), number: 0n, status: COMPLETED, turns: 8n, reward: 0, success: false },
  { ...done, id: rolloutId(2), number: 1n, status: COMPLETED, turns: 12n, reward: 4, success: false },
  {
    ...done,
    id: rolloutId(3),
    number: 2n,
    status: COMPLETED,
    statusMessage: 'dark mode is on',
    phase: 'validation',
    attempt: 2,
    trajectoryId: trajectoryId(23),
    turns: 15n,
    maxTurns: 20n,
    workerId: 'gpu-7/3',
    startFrom: { trajectoryId: trajectoryId(1), stepNumber: 200n },
    modelUri: 's3://models/step-1',
    labels: { model: 'reflex', difficulty: 'easy' },
    inputJson: '{"prompt":"Turn on dark mode"}',
    metadataJson: '{"seed":7}',
    metrics: { output_tokens: 4096, temperature: 0.7 },
    result: {
      reward: 14,
      taskCompleted: true,
      agentReportedSuccess: false,
      success: false,
      errors: ['tap at (12, 40) hit nothing', 'the keyboard\u001b[2J covered the button'],
      summaryJson: '{"taps":11}',
    },
    validationPassed: false,
    override: { ordinal: 1n, success: true, reason: 'the screenshot shows it', actor: 'ana' },
    success: true,
    reward: 14,
    timings: { env_creation: { startTime: at(84), endTime: at(96) }, task: { startTime: at(96) } },
    priority: 5,
    createTime: at(84),
    startTime: at(90),
    endTime: at(264),
    revision: 9n,
  },
  {
    ...done,
    id: rolloutId(4),
    number: 3n,
    status: FAILED,
    statusMessage: 'device offline',
    attempt: 3,
    success: false,
  },
  { ...open, id: rolloutId(5), number: 0n, attempt: 1, status: COMPLETED, turns: 1n, reward: -0.5, taskId: 'wifi' },
  {
    ...open,
    id: rolloutId(6),
    number: 1n,
    attempt: 1,
    status: RUNNING,
    turns: 7n,
    taskId: 'battery 日本語',
    workerId: 'gpu-7/1',
    phase: 'task',
    leaseEndTime: at(14_700),
    startTime: at(14_670),
    revision: 3n,
  },
  { ...open, id: rolloutId(7), number: 2n, attempt: 2, status: INITIALIZING, phase: 'env_creation', taskId: 'wifi' },
  { ...open, id: rolloutId(8), number: 3n, status: PENDING, taskId: 'wifi' },
  { ...open, id: rolloutId(9), number: 4n, status: CANCELLED, statusMessage: 'a sibling succeeded', taskId: 'wifi' },
].map((rollout) => create(RolloutSchema, rollout));

/** A RolloutService with these. Lists have pages of at most four rollouts, and one group. */
export function sampleRollouts(): Partial<ServiceImpl<typeof RolloutService>> {
  return {
    listRollouts(request) {
      const { runId: run = '', stageId: stage = '', taskId, workerId, statuses, labels } = request;
      const { success, minReward, maxReward } = request;
      const found = ROLLOUTS.filter(
        (each) =>
          (run === '' || each.runId === run) &&
          (stage === '' || each.stageId === stage) &&
          (taskId === '' || each.taskId === taskId) &&
          (workerId === '' || each.workerId === workerId) &&
          (statuses.length === 0 || statuses.includes(each.status)) &&
          Object.entries(labels).every(([key, value]) => each.labels[key] === value) &&
          (success === undefined || each.success === success) &&
          (minReward === undefined || (each.reward ?? Number.NaN) >= minReward) &&
          (maxReward === undefined || (each.reward ?? Number.NaN) <= maxReward),
      );
      const from = Number(request.pageToken);
      const to = from + Math.min(request.pageSize || 50, 4);
      return { rollouts: found.slice(from, to), nextPageToken: to < found.length ? String(to) : '' };
    },
    listGroups({ stageId: stage }) {
      return { groups: GROUPS.filter((group) => group.stageId === stage) };
    },
    getRollout({ rolloutId: id }) {
      const rollout = ROLLOUTS.find((each) => each.id === id);
      if (rollout === undefined) throw refusal(Code.NotFound, 'ROLLOUT_NOT_FOUND');
      return id === rolloutId(3) ? { rollout, ...DETAILS } : { rollout };
    },
    getTask: ({ taskId }) => ({ task: { id: taskId, name: 'Turn on dark mode', description: 'In the settings.' } }),
    listValidationOverrides: ({ rolloutId: id, pageToken }) =>
      id !== rolloutId(3)
        ? {}
        : pageToken === ''
          ? { overrides: [{ ...OVERRIDE, ordinal: 1n, success: true }], nextPageToken: 'earlier' }
          : { overrides: [{ ordinal: 0n, reason: 'withdrawn to look again', actor: 'ben', overrideTime: at(300) }] },
    listEnvironments: ({ rolloutId: id }) => ({
      environments:
        id === rolloutId(3)
          ? [{ id: environmentId(1), type: 'android', externalId: 'pixel-7', status: RUNNING, phase: 'booted' }]
          : [],
    }),
  };
}

const OVERRIDE = { reason: 'the screenshot shows it', actor: 'ana', overrideTime: at(400) };

const DETAILS = {
  attempts: [
    {
      number: 1,
      trajectoryId: '',
      status: FAILED,
      message: 'the lease ended',
      workerId: 'gpu-7/2',
      claimTime: at(86),
      endTime: at(150),
    },
    {
      number: 2,
      trajectoryId: trajectoryId(23),
      status: COMPLETED,
      workerId: 'gpu-7/3',
      claimTime: at(150),
      endTime: at(264),
    },
  ],
  validations: [
    {
      name: 'screenshot',
      success: true,
      advisory: true,
      query: 'Is the screen dark?',
      executionDuration: { seconds: 2n },
    },
    {
      name: 'state',
      success: false,
      expectedResult: 'ui_mode=night',
      actualResult: 'ui_mode=day',
      errorMessage: 'adb timed out',
    },
  ],
};

/** The stages of the run, one at a time. */
export function sampleStages(): Partial<ServiceImpl<typeof RunService>> {
  return {
    getStage({ stageId: id, kind, number }) {
      const stage = STAGES.find((each) => each.id === id || (each.kind === kind && each.number === number));
      if (stage === undefined) throw refusal(Code.NotFound, 'STAGE_NOT_FOUND');
      return { stage };
    },
  };
}

/** A branch at step 200 with steps 201 to 215. */
export const attemptTrajectory: Partial<ServiceImpl<typeof TrajectoryService>> = {
  getTrajectory: ({ trajectoryId: id }) => ({
    trajectory: { id, parentId: trajectoryId(1), branchPoint: 200n, nextStepNumber: 216n },
  }),
};

export const attemptSteps: ReadScript = async function* ({ trajectoryId: id, startStepNumber, endStepNumber = 0n }) {
  const steps: Pick<Step, 'stepNumber'>[] = [];
  for (let stepNumber = startStepNumber; stepNumber < endStepNumber; stepNumber++) {
    const last = stepNumber === 215n;
    steps.push({
      stepNumber,
      actions: [{ type: 'tool_call', name: 'tap', content: { json: `{"x":${stepNumber}}` } }],
      observations: [{ type: 'text', content: { text: last ? 'dark mode is on' : 'nothing happens' } }],
      reward: last ? 14 : 0,
      terminated: last,
    } as never);
  }
  yield { trajectoryId: id, steps, nextStepNumber: endStepNumber };
};
