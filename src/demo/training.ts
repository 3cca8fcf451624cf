/**
 * The demo's training: an experiment with two training steps of two groups of four rollouts each, and one evaluation.
 * Four processes claim the rollouts and play them. One of them is killed within a rollout, which another process plays
 * again. The trainer reads the rollouts group by group, and improves the policy.
 */
import type { Rollout } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { type Progress, type Run, type Stage, StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { type Summary, SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, openMetricLogger, watchRun } from '../client/index.ts';
import type { Gains } from './controller.ts';
import type { TrainingEvent } from './events.ts';
import { FIRST_POLICY, improvePolicy, type Sample, samplePolicies } from './policy.ts';
import { Random } from './random.ts';
import type { TaskInput } from './rollout_worker.ts';
import { type Crew, startCrew } from './worker_crew.ts';

export interface TrainingOptions {
  readonly client: AnabranchClient;
  /** 0 to 2^32 - 1. The same seed gives the same episodes. */
  readonly seed: number;
  /** Program and arguments that start a worker. The task is appended as the last argument. */
  readonly workerCommand: readonly string[];
  readonly onEvent: (event: TrainingEvent) => void;
  readonly signal: AbortSignal;
}

/** Ids and summaries of what the training created. */
export interface TrainingResult {
  readonly runId: string;
  readonly runName: string;
  /** The rollout whose first worker was killed. */
  readonly killedRolloutId: string;
  /** Summaries by policy: 0, 1, 2. */
  readonly summaries: readonly Summary[];
}

const EXPERIMENT = 'cartpole-training';
const TRAIN_STEPS = 2;
const GROUPS = 2;
const GROUP_SIZE = 4;
const MAX_TURNS = 200;
const WORKERS = 4;

/** Any failure stops all work, including processes, before it is thrown. */
export async function runTraining(options: TrainingOptions): Promise<TrainingResult> {
  const failure = new AbortController();
  const around = { ...options, signal: AbortSignal.any([options.signal, failure.signal]) };
  const run = await makeRun(around);
  const showing = showProgress(run.id, around);
  const crew = startCrew({ ...around, runId: run.id, workers: WORKERS, onFailure: (error) => failure.abort(error) });
  try {
    await train(run, crew, around);
    await Promise.all([crew.ended(), showing]);
  } catch (error) {
    failure.abort(error);
    await Promise.allSettled([crew.ended(), showing]);
    throw failure.signal.reason; // the first failure, which caused the others
  }
  const summaries = await summarize(run.id, around);
  return { runId: run.id, runName: run.name, killedRolloutId: crew.killedRolloutId, summaries };
}

async function makeRun({ client, seed, onEvent, signal }: TrainingOptions): Promise<Run> {
  await makeExperiment(client, signal);
  const size = { groupsPerStage: GROUPS, groupSize: GROUP_SIZE, maxTurns: MAX_TURNS };
  const { run } = await client.runs.createRun(
    {
      experimentName: EXPERIMENT,
      configJson: JSON.stringify({ seed }),
      labels: { demo: 'cartpole', seed: String(seed) },
      initialStatus: Status.RUNNING,
      plan: {
        concurrency: WORKERS,
        stagePlans: [
          { kind: StageKind.TRAIN_STEP, stages: TRAIN_STEPS, ...size },
          { kind: StageKind.EVAL, stages: 1, ...size, groupsPerStage: 1 },
        ],
      },
    },
    { signal },
  );
  const created = present(run, 'run');
  onEvent({ event: 'run', name: created.name, runId: created.id, experimentName: EXPERIMENT });
  return created;
}

async function makeExperiment(client: AnabranchClient, signal: AbortSignal): Promise<void> {
  const experiment = { name: EXPERIMENT, environmentName: 'CartPole-v1', agentType: 'linear controller' };
  await client.runs.createExperiment({ ...experiment, ifExists: IfExists.RETURN_EXISTING }, { signal });
}

/** Reports the progress of the run when it changes, until the run has ended. */
async function showProgress(runId: string, { client, onEvent, signal }: TrainingOptions): Promise<void> {
  for await (const { run, stages, progress, changed } of watchRun(client, { runId, untilTerminal: true, signal })) {
    if (changed.run || changed.progress) onEvent(progressEvent(run, [...stages.values()], progress));
  }
}

function progressEvent(run: Run, stages: readonly Stage[], progress: Progress): TrainingEvent {
  const { percent = 0, estimatedRemaining, turnsDone, turnsExpected, kinds, openStages } = progress;
  const sum = (of: (kind: Progress['kinds'][number]) => bigint) => kinds.reduce((total, kind) => total + of(kind), 0n);
  const remaining =
    estimatedRemaining === undefined ? undefined : Number(estimatedRemaining.seconds) + estimatedRemaining.nanos / 1e9;
  return {
    event: 'progress',
    name: run.name,
    percent,
    ...(remaining === undefined ? {} : { remainingSeconds: remaining }),
    ...{ turnsDone, turnsExpected },
    rolloutsDone: sum(({ rolloutsTerminal }) => rolloutsTerminal),
    rolloutsExpected: sum(({ rolloutsExpected }) => rolloutsExpected),
    stages: stages.map(({ id, kind, number, status }) => ({
      name: stageName(kind, number),
      percent: status === Status.COMPLETED ? 100 : (openStages.find(({ stageId }) => stageId === id)?.percent ?? 0),
    })),
  };
}

function stageName(kind: StageKind, number: bigint): string {
  return `${kind === StageKind.EVAL ? 'eval' : 'train step'} ${number}`;
}

async function train(run: Run, crew: Crew, options: TrainingOptions): Promise<void> {
  const { client, seed, signal } = options;
  const random = Random.seeded(seed);
  const stages = await makeStages(run, options);
  let policy = FIRST_POLICY;
  await using metrics = openMetricLogger(client, { runId: run.id, signal });
  for (let step = 1; step <= TRAIN_STEPS; step++) {
    const sampled = Array.from({ length: GROUPS }, () => samplePolicies(policy, GROUP_SIZE, random));
    const stage = { stage: stages[step - 1], version: step - 1 };
    const groups = await playStage(stage, sampled, { ...options, crew });
    policy = improvePolicy(policy, groups);
    metrics.log('reward_mean', step, meanReward(groups));
  }
  const evaluated = [Array.from({ length: GROUP_SIZE }, () => policy)];
  const stage = { stage: stages[TRAIN_STEPS], version: TRAIN_STEPS };
  const groups = await playStage(stage, evaluated, { ...options, crew });
  const resultJson = JSON.stringify({ policy, reward_mean: meanReward(groups) });
  await client.runs.completeRun({ runId: run.id, resultJson }, { signal });
}

/**
 * Creates the training steps and the evaluation, all PENDING. Workers claim by run and end when the queues of all its
 * stages are closed, so each stage must exist before the queue of the previous one is closed.
 */
async function makeStages({ id: runId }: Run, { client, signal }: TrainingOptions): Promise<Stage[]> {
  const steps = Array.from({ length: TRAIN_STEPS }, (_, i) => ({ kind: StageKind.TRAIN_STEP, number: BigInt(i + 1) }));
  const stages: Stage[] = [];
  for (const stageName of [...steps, { kind: StageKind.EVAL, number: BigInt(TRAIN_STEPS) }]) {
    const { stage } = await client.runs.getOrCreateStage({ runId, ...stageName }, { signal });
    stages.push(present(stage, 'stage'));
  }
  return stages;
}

interface StageToPlay {
  readonly stage: Stage | undefined;
  /** Number of improvements of the policy that the samples are taken from. */
  readonly version: number;
}

/** Has the policies played, one group per list, and reads the results. */
async function playStage(
  { stage, version }: StageToPlay,
  policies: readonly (readonly Gains[])[],
  { client, onEvent, signal, seed, crew }: TrainingOptions & { readonly crew: Crew },
): Promise<Sample[][]> {
  const { id: stageId, kind, number } = present(stage, 'stage');
  await client.runs.startStage({ stageId, phase: 'sampling' }, { signal });
  // Siblings of a training group have the same task, so that they can be compared. An evaluation has a task for each
  // sibling.
  const taskId = (group: number, sibling: number) =>
    `cartpole-${seed}-${kind === StageKind.EVAL ? `eval-${sibling}` : `${number}-${group}`}`;
  const rollouts = policies.flatMap((group, groupNumber) =>
    group.map((gains, sibling) => ({
      groupNumber: BigInt(groupNumber),
      number: BigInt(sibling),
      taskId: taskId(groupNumber, sibling),
      labels: { policy: String(version) },
      inputJson: JSON.stringify({ gains }),
    })),
  );
  await makeTasks(client, [...new Set(rollouts.map((rollout) => rollout.taskId))], signal);
  await client.rollouts.createRollouts({ stageId, rollouts }, { signal });
  await client.runs.closeQueue({ stageId }, { signal });
  crew.begin();
  const groups = await readGroups(client, stageId, policies.length, signal);
  const metrics = { reward_mean: meanReward(groups) };
  const updateMask = { paths: ['metrics', 'phase'] };
  await client.runs.updateStage({ stageId, updateMask, metrics, phase: '' }, { signal });
  await client.runs.completeStage({ stageId }, { signal });
  onEvent({ event: 'stage', name: stageName(kind, number), rewardMean: meanReward(groups), version });
  return groups;
}

/** Each task is an episode of its own. Its validator checks whether the pole is up at the end. */
async function makeTasks(client: AnabranchClient, ids: readonly string[], signal: AbortSignal): Promise<void> {
  const tasks = ids.map((id) => ({
    id,
    name: 'Balance the pole',
    maxTurns: BigInt(MAX_TURNS),
    inputJson: JSON.stringify({ seed: seedOf(id) } satisfies TaskInput),
    validators: { upright: { expectedResult: `${MAX_TURNS} turns` } },
  }));
  await client.rollouts.upsertTasks({ tasks }, { signal });
}

/** Returns a 32-bit number for a text (FNV-1a). */
function seedOf(text: string): number {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/**
 * Reads the rollouts of each group with their steps when the whole group has ended. The stream ends with the last
 * group.
 */
async function readGroups(
  client: AnabranchClient,
  stageId: string,
  count: number,
  signal: AbortSignal,
): Promise<Sample[][]> {
  const groups: Sample[][] = [];
  let group: Sample[] = [];
  let reading: { readonly rollout: Rollout; reward: number } | undefined;
  for await (const message of client.rollouts.readRollouts({ stageId, follow: true }, { signal })) {
    if (message.rollout !== undefined) reading = { rollout: message.rollout, reward: 0 };
    for (const { reward = 0 } of message.steps) if (reading !== undefined) reading.reward += reward;
    if (message.rolloutDone && reading !== undefined) group.push(sampleOf(reading));
    if (!message.groupDone) continue;
    groups.push(group);
    group = [];
  }
  if (groups.length !== count) throw new Error(`${groups.length} of ${count} groups were played`);
  return groups;
}

function sampleOf({ rollout, reward }: { readonly rollout: Rollout; readonly reward: number }): Sample {
  return { policy: (JSON.parse(rollout.inputJson) as { gains: Gains }).gains, reward };
}

function meanReward(groups: readonly (readonly Sample[])[]): number {
  const rewards = groups.flat().map(({ reward }) => reward);
  return rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
}

async function summarize(runId: string, { client, signal }: TrainingOptions): Promise<Summary[]> {
  const dimensions = [{ label: 'policy' }, { key: SummaryKey.STAGE_KIND }];
  const { summaries } = await client.runs.summarize({ runIds: [runId], dimensions, passAt: [1, 4] }, { signal });
  return summaries;
}

function present<T>(value: T | undefined, noun: string): T {
  if (value === undefined) throw new Error(`the response of the server has no ${noun}`);
  return value;
}
