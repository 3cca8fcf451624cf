/**
 * The demo's training: an experiment with two training steps of two groups of four rollouts each, and one evaluation.
 * Four processes claim the rollouts and play them. One of them is killed within a rollout, which another process plays
 * again. The trainer reads the rollouts group by group, and improves the policy.
 */
import { randomUUID } from 'node:crypto';
import type { Claim } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { type Run, type Stage, StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { counted, shortNumber } from '../cli/columns.ts';
import { leftText, secondsOf } from '../cli/progress.ts';
import { type AnabranchClient, openMetricLogger, openWriter, reasonOf, watchRun } from '../client/index.ts';
import { CartPole, type Gains, Random } from './cartpole.ts';
import { act, checkpointOf, HANGING, isOver, NOISE, PID, playInProcess, standStill } from './episode.ts';
import { type DemoOptions, type PlayOptions, present, together } from './events.ts';

const EXPERIMENT = 'cartpole-training';
const TRAIN_STEPS = 2;
const GROUPS = 2;
const GROUP_SIZE = 4;
const MAX_TURNS = 200;
const WORKERS = 4;
/** Long enough for a live worker, and short enough to wait for its end. */
const LEASE_SECONDS = 2n;
/** Fewer turns than any episode has. */
const HANG_AFTER = 10;

/** Returns ids of what was created, the rollout whose first worker was killed, and summaries by policy: 0, 1, 2. */
export async function runTraining(options: DemoOptions) {
  const { client, signal } = options;
  const run = await makeRun(options);
  const stages = await makeStages(run, options);
  const [killedRolloutId = ''] = await together<string | undefined>(options, [
    (around) => runWorkers(run.id, around),
    (around) => train(run, stages, around),
    (around) => showProgress(run.id, around),
  ]);
  const dimensions = [{ label: 'policy' }, { key: SummaryKey.STAGE_KIND }];
  const { summaries } = await client.runs.summarize({ runIds: [run.id], dimensions, passAt: [1, 4] }, { signal });
  return { runId: run.id, runName: run.name, killedRolloutId, summaries };
}

async function makeRun({ client, seed, onEvent, signal }: DemoOptions): Promise<Run> {
  const experiment = { name: EXPERIMENT, environmentName: 'CartPole-v1', agentType: 'linear controller' };
  await client.runs.createExperiment({ ...experiment, ifExists: IfExists.RETURN_EXISTING }, { signal });
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
  const { id: runId, name } = present(run);
  const lines = [`run ${runId}, of ${EXPERIMENT}`];
  onEvent({ event: 'run', name, runId, experimentName: EXPERIMENT }, { lines });
  return present(run);
}

/** Reports the progress of the run when it changes, until the run has ended. */
async function showProgress(runId: string, { client, onEvent, signal }: DemoOptions): Promise<undefined> {
  let printedTenths = 0;
  for await (const { run, stages, progress, changed } of watchRun(client, { runId, untilTerminal: true, signal })) {
    if (!changed.run && !changed.progress) continue;
    const { percent = 0, estimatedRemaining, kinds, openStages } = progress;
    const rolloutsDone = kinds.reduce((sum, { rolloutsTerminal }) => sum + rolloutsTerminal, 0n);
    const rolloutsExpected = kinds.reduce((sum, { rolloutsExpected }) => sum + rolloutsExpected, 0n);
    const left = leftText(progress);
    const bars = [...stages.values()].map(({ id, kind, number, status }) => {
      const open = openStages.find(({ stageId }) => stageId === id);
      const value = status === Status.COMPLETED ? 100 : Math.floor(open?.percent ?? 0);
      return { name: stageName(kind, number), total: 100, value, note: '' };
    });
    const note = `${left === undefined ? '' : `${left} left, `}${rolloutsDone}/${rolloutsExpected} rollouts`;
    bars.unshift({ name: run.name, total: 100, value: Math.floor(percent), note });
    // A line for each tenth of the progress.
    const text = `${Math.floor(percent)} %, ${rolloutsDone} of ${rolloutsExpected} rollouts`;
    const lines = Math.floor(percent / 10) > printedTenths ? [left === undefined ? text : `${text}, ${left} left`] : [];
    printedTenths = Math.max(Math.floor(percent / 10), printedTenths);
    const remainingSeconds = estimatedRemaining && secondsOf(estimatedRemaining);
    const counts = { percent, remainingSeconds, rolloutsDone, rolloutsExpected };
    onEvent({ event: 'progress', name: run.name, ...counts }, { lines, bars });
  }
}

function stageName(kind: StageKind, number: bigint): string {
  return `${kind === StageKind.EVAL ? 'eval' : 'train step'} ${number}`;
}

/**
 * Starts the workers, which end when no rollout can follow. The first one is killed within a rollout. Only then the
 * others start, so that one of them claims that rollout again when its lease has ended. Returns the rollout.
 */
async function runWorkers(runId: string, options: DemoOptions): Promise<string> {
  const { client, onEvent, signal } = options;
  const first: WorkerTask = { runId, workerId: 'worker-1', hangAfter: HANG_AFTER, killedRolloutId: '' };
  const hung = await playInProcess(first, options);
  if (hung === undefined) throw new Error('the first worker ended before it was killed');
  const { name, pid, turns } = hung;
  const [rolloutId, environmentId] = [String(hung.rolloutId), String(hung.environmentId)];
  const lines = [`process ${pid} killed (SIGKILL) after ${counted(Number(turns), 'turn')} of a rollout`];
  onEvent({ event: 'worker_killed', name, pid, rolloutId, turns }, { lines });
  // No other process knows that the environment of the killed worker is gone.
  const end = { runId, status: Status.FAILED, message: 'its process was killed' };
  await client.rollouts.upsertEnvironment({ environmentId, ...end }, { signal });
  const others = Array.from({ length: WORKERS - 1 }, (_, i) => {
    const task: WorkerTask = { runId, workerId: `worker-${i + 2}`, hangAfter: undefined, killedRolloutId: rolloutId };
    return (around: DemoOptions) => playInProcess(task, around);
  });
  await together(options, others);
  return rolloutId;
}

async function train({ id: runId }: Run, stages: readonly Stage[], options: DemoOptions): Promise<undefined> {
  const { client, seed, signal } = options;
  const random = Random.seeded(seed);
  let policy = FIRST_POLICY;
  await using metrics = openMetricLogger(client, { runId, signal });
  for (const [version, stage] of stages.entries()) {
    const isTraining = stage.kind === StageKind.TRAIN_STEP;
    const sampled = isTraining
      ? Array.from({ length: GROUPS }, () => samplePolicies(policy, GROUP_SIZE, random))
      : [Array.from({ length: GROUP_SIZE }, () => policy)];
    const groups = await playStage(stage, version, sampled, options);
    if (isTraining) {
      policy = improvePolicy(policy, groups);
      metrics.log('reward_mean', version + 1, meanReward(groups));
    } else {
      const resultJson = JSON.stringify({ policy, reward_mean: meanReward(groups) });
      await client.runs.completeRun({ runId, resultJson }, { signal });
    }
  }
}

/**
 * Creates the training steps and the evaluation, all PENDING. Workers claim by run and end when the queues of all its
 * stages are closed, so each stage must exist before the queue of the previous one is closed.
 */
async function makeStages({ id: runId }: Run, { client, signal }: DemoOptions): Promise<Stage[]> {
  const steps = Array.from({ length: TRAIN_STEPS }, (_, i) => ({ kind: StageKind.TRAIN_STEP, number: BigInt(i + 1) }));
  const stages: Stage[] = [];
  for (const name of [...steps, { kind: StageKind.EVAL, number: BigInt(TRAIN_STEPS) }]) {
    const { stage } = await client.runs.getOrCreateStage({ runId, ...name }, { signal });
    stages.push(present(stage));
  }
  return stages;
}

/**
 * Has the policies played, one group per list, and reads the results. `version` is the number of improvements of the
 * policy that they are sampled from.
 */
async function playStage(
  { id: stageId, kind, number }: Stage,
  version: number,
  policies: readonly (readonly Gains[])[],
  { client, onEvent, signal, seed }: DemoOptions,
): Promise<Sample[][]> {
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
  // Each task is an episode of its own. Its validator checks whether the pole is up at the end.
  const validators = { upright: { expectedResult: `${MAX_TURNS} turns` } };
  const task = { name: 'Balance the pole', maxTurns: BigInt(MAX_TURNS), validators };
  const tasks = [...new Set(rollouts.map((rollout) => rollout.taskId))].map((id) => {
    return { ...task, id, inputJson: JSON.stringify({ seed: seedOf(id) }) };
  });
  await client.rollouts.upsertTasks({ tasks }, { signal });
  await client.rollouts.createRollouts({ stageId, rollouts }, { signal });
  await client.runs.closeQueue({ stageId }, { signal });
  const groups = await readGroups(stageId, client, signal);
  const rewardMean = meanReward(groups);
  const updateMask = { paths: ['metrics', 'phase'] };
  await client.runs.updateStage({ stageId, updateMask, metrics: { reward_mean: rewardMean }, phase: '' }, { signal });
  await client.runs.completeStage({ stageId }, { signal });
  const lines = [`policy ${version} came to a mean reward of ${shortNumber(rewardMean)}`];
  onEvent({ event: 'stage', name: stageName(kind, number), rewardMean, version }, { lines });
  return groups;
}

/** Returns a 32-bit number for a text (FNV-1a). */
function seedOf(text: string): number {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** Reads each group when all its rollouts have ended. The stream ends with the last group. */
async function readGroups(stageId: string, client: AnabranchClient, signal: AbortSignal): Promise<Sample[][]> {
  const groups: Sample[][] = [[]];
  for await (const message of client.rollouts.readRollouts({ stageId, follow: true }, { signal })) {
    const group = groups.at(-1)!;
    if (message.rollout !== undefined) {
      const { gains } = JSON.parse(message.rollout.inputJson) as { gains: Gains };
      group.push({ policy: gains, reward: message.rollout.reward ?? 0 });
    }
    if (message.groupDone) groups.push([]);
  }
  return groups.slice(0, -1);
}

function meanReward(groups: readonly (readonly Sample[])[]): number {
  const rewards = groups.flat().map(({ reward }) => reward);
  return rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
}

/** A policy that uses only the angle, and soon fails. */
export const FIRST_POLICY: Gains = { x: 0, xDot: 0, theta: 5, thetaDot: 0 };

/** Standard deviations of the samples. */
const SPREAD: Gains = { x: 0.2, xDot: 0.2, theta: 0.5, thetaDot: 0.5 };

/** Returns the policy itself and `count - 1` samples around it. */
export function samplePolicies(policy: Gains, count: number, random: Random): Gains[] {
  const others = Array.from({ length: count - 1 }, () =>
    ofEach((name) => policy[name] + SPREAD[name] * normal(random)),
  );
  return [policy, ...others];
}

interface Sample {
  readonly policy: Gains;
  /** The sum of the rewards. */
  readonly reward: number;
}

/**
 * Returns the weighted mean of all samples. The weight of a sample is its advantage over its group, in standard
 * deviations, and 0 if it was worse. Returns the policy unchanged if no group has an advantage.
 */
export function improvePolicy(policy: Gains, groups: readonly (readonly Sample[])[]): Gains {
  const weighted = groups.flatMap((group) => {
    const mean = group.reduce((sum, { reward }) => sum + reward, 0) / group.length;
    const variance = group.reduce((sum, { reward }) => sum + (reward - mean) ** 2, 0) / (group.length - 1);
    if (!(variance > 0)) return [];
    return group.map((sample) => ({ ...sample, weight: Math.max(0, (sample.reward - mean) / Math.sqrt(variance)) }));
  });
  const total = weighted.reduce((sum, { weight }) => sum + weight, 0);
  if (total === 0) return policy;
  return ofEach((name) => weighted.reduce((sum, sample) => sum + sample.weight * sample.policy[name], 0) / total);
}

function ofEach(value: (name: keyof Gains) => number): Gains {
  return { x: value('x'), xDot: value('xDot'), theta: value('theta'), thetaDot: value('thetaDot') };
}

/** Returns a normally distributed number (Box and Muller). */
function normal(random: Random): number {
  const radius = Math.sqrt(-2 * Math.log(1 - random.uniform(0, 1)));
  return radius * Math.cos(2 * Math.PI * random.uniform(0, 1));
}

export interface WorkerTask {
  readonly runId: string;
  readonly workerId: string;
  /** Stops after this many turns of the first rollout, and waits to be killed. */
  readonly hangAfter: number | undefined;
  /** The rollout whose worker was killed. */
  readonly killedRolloutId: string;
}

/**
 * Claims rollouts, plays them into the trajectories of the claims, and completes them. A worker holds nothing that the
 * store does not, so another worker can claim its rollout again when it is killed.
 */
export async function runRolloutWorker(task: WorkerTask, options: PlayOptions): Promise<void> {
  const { client, onEvent, signal } = options;
  const { runId, workerId } = task;
  const environmentId = randomUUID();
  const place = { runId, environmentId };
  const made = { ...place, type: 'cartpole', externalId: workerId, status: Status.RUNNING };
  await client.rollouts.upsertEnvironment(made, { signal });
  onEvent({ event: 'worker', name: workerId }, { lines: [`process ${PID} claims rollouts`] });
  // Waits for rollouts that others may release, and ends when no rollout can follow.
  for (let isDrained = false; !isDrained; ) {
    const request = { runId, workerId, leaseDuration: { seconds: LEASE_SECONDS }, wait: { seconds: 30n } };
    const { claims, drained } = await client.rollouts.claimRollouts(request, { signal });
    for (const claim of claims) {
      await play(claim, { ...task, environmentId }, options).catch((error: unknown) => {
        if (!LOST.has(reasonOf(error) ?? '')) throw error;
      });
    }
    isDrained = drained;
  }
  await client.rollouts.upsertEnvironment({ ...place, status: Status.COMPLETED }, { signal });
}

/** Errors of a worker whose lease has ended: the rollout, or its trajectory, belongs to another worker. */
const LOST = new Set(['LEASE_LOST', 'WRITER_FENCED', 'TRAJECTORY_SEALED']);

/** Each turn is durable before the next one is played. One call completes the rollout and seals its trajectory. */
async function play(
  claim: Claim,
  worker: WorkerTask & { readonly environmentId: string },
  { client, onEvent, signal }: PlayOptions,
): Promise<void> {
  const { workerId: name, environmentId, hangAfter, killedRolloutId } = worker;
  const { id: rolloutId, attempt } = present(claim.rollout);
  const claimed = { rolloutId, attempt };
  if (rolloutId === killedRolloutId) {
    const lines = [`claimed that rollout again, as attempt ${attempt}`];
    onEvent({ event: 'claimed_again', name, ...claimed }, { lines });
  }
  const updateMask = { paths: ['environment_ids'] };
  await client.rollouts.updateRollout({ ...claimed, updateMask, environmentIds: [environmentId] }, { signal });
  await client.rollouts.startRollout(claimed, { signal });
  const { seed } = JSON.parse(claim.task?.inputJson ?? '') as { seed: number };
  const { gains } = JSON.parse(claim.rollout?.inputJson ?? '') as { gains: Gains };
  const { id: trajectoryId, uid } = present(claim.trajectory);
  const maxTurns = Number(claim.maxTurns);
  const began = performance.now();
  const cart = CartPole.reset(seed, NOISE);
  // Every step is awaited, so nothing must be flushed, however this ends.
  const done = new AbortController();
  using _ = { [Symbol.dispose]: () => done.abort() };
  const writer = await openWriter(client, { trajectoryId, uid, signal: AbortSignal.any([signal, done.signal]) });
  await writer.append(checkpointOf(cart));
  while (!isOver(cart) && cart.state.steps < maxTurns) {
    // The root has the whole state. Turns have none, as with most trainers.
    await writer.append({ ...act(cart, gains), states: undefined });
    if (cart.state.steps !== hangAfter) continue;
    onEvent({ event: HANGING, name, turns: hangAfter, rolloutId, environmentId });
    standStill();
  }
  const turns = cart.state.steps;
  const success = !cart.terminated;
  await client.rollouts.completeRollout(
    {
      ...claimed,
      message: success ? `balanced for ${counted(turns, 'turn')}` : `fell at turn ${turns}`,
      expectedNextStepNumber: writer.nextStepNumber,
      result: { taskCompleted: success },
      validations: Object.keys(claim.task?.validators ?? {}).map((name) => ({
        name,
        success,
        actualResult: counted(turns, 'turn'),
      })),
      metrics: { steps_per_second: (turns / (performance.now() - began)) * 1000 },
    },
    { signal },
  );
}
