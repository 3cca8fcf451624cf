/**
 * Runs with fixed contents, served by a scripted server, for drawings compared with files. Times of a real server would
 * differ in every run.
 */
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { Code, type ServiceImpl } from '@connectrpc/connect';
import {
  type MetricSeriesSchema,
  type ProgressSchema,
  type Run,
  RunSchema,
  StageKind,
  type StageSchema,
} from '../../gen/es/anabranch/v1/run_pb.js';
import type { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { refusal } from '../client/scripted-peer.ts';

export const runId = (n: number) => `01990000-0000-7000-8000-0000000001${String(n).padStart(2, '0')}`;
export const stageId = (n: number) => `01990000-0000-7000-8000-0000000002${String(n).padStart(2, '0')}`;
export const trajectoryId = (n: number) => `01990000-0000-7000-8000-0000000003${String(n).padStart(2, '0')}`;

/** This many seconds after 2026-11-21 12:00:00 UTC. */
export const at = (seconds: number) => ({ seconds: BigInt(1_795_262_400 + seconds), nanos: 0 });
const { RUNNING, COMPLETED, FAILED, CANCELLED, PENDING, INITIALIZING } = Status;
const { TRAIN_STEP, EVAL, BASELINE } = StageKind;

const cartpole = { experimentId: runId(90), experimentName: 'cartpole', heartbeatTimeout: { seconds: 300n } };

export const RUNS: readonly Run[] = [
  {
    ...cartpole,
    id: runId(1),
    number: 1n,
    name: 'main',
    treeId: runId(1),
    configJson: '{"agent":{"weights":[0,0,1,0],"kind":"reflex"},"learning_rate":0.01,"seed":9007199254740993}',
    configOverridesJson: '{"learning_rate":0.01}',
    mainTrajectoryId: trajectoryId(1),
    nextStepNumber: 201n,
    rewardSum: 200,
    status: COMPLETED,
    statusMessage: 'balanced for 200 steps',
    resultJson: '{"steps":200}',
    createTime: at(0),
    startTime: at(1),
    endTime: at(75),
  },
  {
    ...cartpole,
    id: runId(2),
    number: 2n,
    name: 'lr 0.1',
    description: 'Branched from main at step 200',
    treeId: runId(1),
    parentId: runId(1),
    branchPoint: 200n,
    configJson: '{"agent":{"weights":[0,0,1,0],"kind":"reflex"},"learning_rate":0.1,"seed":9007199254740993}',
    configOverridesJson: '{"learning_rate":0.1}',
    removedConfigPaths: ['/agent/gain', '/notes'],
    labels: { model: 'reflex', sweep_id: 'a' },
    mainTrajectoryId: trajectoryId(2),
    nextStepNumber: 350n,
    rewardSum: 349,
    status: RUNNING,
    phase: 'training',
    metrics: { best: 349 },
    heartbeatTime: at(100),
    plan: { concurrency: 8, stagePlans: [{ kind: TRAIN_STEP, stages: 10, substeps: 4 }] },
    createTime: at(80),
    startTime: at(80),
    revision: 7n,
  },
  {
    ...cartpole,
    id: runId(3),
    number: 3n,
    name: 'angle\u001b[2J only 日本語',
    treeId: runId(1),
    parentId: runId(1),
    branchPoint: 200n,
    mainTrajectoryId: trajectoryId(3),
    nextStepNumber: 242n,
    rewardSum: 241,
    status: FAILED,
    statusMessage: 'fell at step 241',
    createTime: at(81),
    startTime: at(81),
    endTime: at(90),
  },
  {
    ...cartpole,
    id: runId(4),
    number: 4n,
    name: 'lr 0.1, later',
    treeId: runId(1),
    parentId: runId(2),
    branchPoint: 300n,
    mainTrajectoryId: trajectoryId(4),
    nextStepNumber: 301n,
    rewardSum: 300,
    status: PENDING,
    createTime: at(120),
  },
  {
    id: runId(5),
    number: 1n,
    name: 'cua_rl-2026-11-21-a-name-that-is-longer-than-any-table-is-wide',
    experimentId: runId(91),
    experimentName: 'default',
    treeId: runId(5),
    status: INITIALIZING,
    stale: true,
    heartbeatTimeout: { seconds: 90n },
    heartbeatTime: at(0),
    createTime: at(0),
  },
  {
    id: runId(6),
    number: 2n,
    name: 'main',
    experimentId: runId(91),
    experimentName: 'default',
    treeId: runId(6),
    status: CANCELLED,
    createTime: at(-9000),
    startTime: at(-9000),
    endTime: at(0),
  },
].map((run) => create(RunSchema, run));

export const PROGRESS: Readonly<Record<string, MessageInitShape<typeof ProgressSchema>>> = {
  [runId(1)]: { percent: 100 },
  [runId(2)]: {
    percent: 26.5,
    estimatedRemaining: { seconds: 4210n },
    turnsDone: 80n,
    turnsExpected: 640n,
    substepsDone: 9n,
    substepsExpected: 40n,
    kinds: [
      {
        kind: TRAIN_STEP,
        planned: 10n,
        created: 3n,
        open: 1n,
        completed: 1n,
        failed: 1n,
        rolloutsExpected: 80n,
        rolloutsCreated: 24n,
        rolloutsTerminal: 18n,
      },
      { kind: EVAL, created: 1n, completed: 1n },
    ],
    openStages: [
      {
        stageId: stageId(4),
        kind: TRAIN_STEP,
        number: 3n,
        percent: 62.9,
        rolloutsExpected: 8n,
        rolloutsCreated: 8n,
        rolloutsLive: 2n,
        rolloutsTerminal: 2n,
      },
    ],
  },
  [runId(5)]: { kinds: [{ kind: TRAIN_STEP, created: 12n, open: 12n }] },
};

export const STAGES: readonly MessageInitShape<typeof StageSchema>[] = [
  {
    id: stageId(1),
    kind: BASELINE,
    number: 0n,
    status: COMPLETED,
    startTime: at(80),
    endTime: at(84),
    metrics: { 'success rate': 0.25 },
  },
  {
    id: stageId(2),
    kind: TRAIN_STEP,
    number: 1n,
    status: COMPLETED,
    completedSubsteps: 4n,
    totalSubsteps: 4n,
    modelCheckpointUri: 's3://models/step-1',
    startTime: at(84),
    endTime: at(264),
    metrics: { loss: 0.41, kl: 0.02 },
  },
  {
    id: stageId(3),
    kind: TRAIN_STEP,
    number: 2n,
    status: FAILED,
    statusMessage: 'out of memory',
    completedSubsteps: 2n,
    totalSubsteps: 4n,
    startTime: at(264),
    endTime: at(14_664),
    metrics: { loss: Number.NaN, kl: 0.5 },
  },
  {
    id: stageId(4),
    kind: TRAIN_STEP,
    number: 3n,
    status: RUNNING,
    phase: 'training',
    completedSubsteps: 3n,
    totalSubsteps: 4n,
    startTime: at(14_664),
    metrics: { loss: 0.33 },
    revision: 5n,
  },
];

const wave = Array.from({ length: 60 }, (_, i) => Math.sin(i / 6));

export const SERIES: readonly MessageInitShape<typeof MetricSeriesSchema>[] = [
  { runId: runId(2), key: 'angle', metricSteps: wave.map((_, i) => BigInt(i * 10)), values: wave, pointCount: 600n },
  { runId: runId(2), key: 'gain', metricSteps: [0n, 2n], values: [1, 4], pointCount: 3n, nanCount: 1n },
  { runId: runId(2), stageId: stageId(4), key: 'reward', metricSteps: [1n], values: [0.5], pointCount: 1n },
];

/** A RunService with these runs. Lists have pages of at most four. */
export function sampleRuns(): Partial<ServiceImpl<typeof RunService>> {
  const known = (wanted: (run: Run) => boolean) => {
    const run = RUNS.find(wanted);
    if (run === undefined) throw refusal(Code.NotFound, 'RUN_NOT_FOUND');
    return { run };
  };
  return {
    getRun: ({ runId: id, runName, experimentName }) => {
      const isNamed = (run: Run) => run.name === runName && run.experimentName === (experimentName || 'default');
      const { run } = known((each) => each.id === id || isNamed(each));
      return { run, progress: PROGRESS[run.id] ?? {} };
    },
    listRuns({ name, experimentName, statuses, labels, staleOnly, rootsOnly, pageSize, pageToken }) {
      const found = RUNS.filter(
        (run) =>
          (name === '' || run.name === name) &&
          (experimentName === '' || run.experimentName === experimentName) &&
          (statuses.length === 0 || statuses.includes(run.status)) &&
          Object.entries(labels).every(([key, value]) => run.labels[key] === value) &&
          (!staleOnly || run.stale) &&
          (!rootsOnly || run.parentId === ''),
      );
      const from = Number(pageToken);
      const to = from + Math.min(pageSize || 50, 4);
      const runs = found.slice(from, to).map((run) => ({ run, progress: PROGRESS[run.id] ?? {} }));
      return { runs, nextPageToken: to < found.length ? String(to) : '' };
    },
    listStages: ({ runId: id }) => ({ stages: id === runId(2) ? STAGES.toReversed() : [] }),
    getRunTree: ({ runId: id }) => {
      const { run } = known((each) => each.id === id);
      return { runs: RUNS.filter(({ treeId }) => treeId === run.treeId) };
    },
    async *readMetrics({ runIds, keys, runLevelOnly, stageId: stage }) {
      for (const series of SERIES) {
        const inScope = runLevelOnly ? series.stageId === undefined : series.stageId === stage;
        if (series.runId !== runIds[0] || !inScope) continue;
        if (keys.length > 0 && !keys.includes(series.key ?? '')) continue;
        yield { series: [series] };
      }
    },
  };
}
