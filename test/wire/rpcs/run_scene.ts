import { randomUUID } from 'node:crypto';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { putState, type WireClient } from '../story.ts';
import { appendAll, FILE, LABELS } from './scene.ts';

/** Runs: the scene before most RPCs of RunService are called; a new one for every set of calls. */
export interface LifeScene extends WireClient {
  readonly experimentId: string;
  readonly experimentName: string;
  readonly environmentName: string;
  /** Named `main`, RUNNING, with a plan and metrics. Its main trajectory has steps 0 to 3; tag `here` names step 1. */
  readonly runId: string;
  readonly mainId: string;
  /** Named `branch`: branched at step 1 with another learning rate, one own step, COMPLETED. */
  readonly branchId: string;
  /** Named `bare`: PENDING, without a main trajectory, without stages. */
  readonly bareId: string;
}

/** A run with stages: the scene before an RPC about stages is called. */
export interface StageScene extends WireClient {
  /** RUNNING, with a plan. */
  readonly runId: string;
  /** TRAIN_STEP 1 of it: COMPLETED, with a model checkpoint and metrics. */
  readonly trainedId: string;
  /** EVAL 1 of it: RUNNING. */
  readonly evalId: string;
  /** BASELINE 0 of it: PENDING. */
  readonly baselineId: string;
}

export interface RunScene extends LifeScene, StageScene {}

export const PLAN = {
  stagePlans: [{ kind: StageKind.TRAIN_STEP, stages: 4, groupsPerStage: 2, groupSize: 3, maxTurns: 5, substeps: 6 }],
  concurrency: 7,
};

export async function makeRunScene(client: WireClient): Promise<RunScene> {
  const life = await makeLifeScene(client);
  const stages = await makeStages(client, life.runId);
  const points = [0n, 1n, 2n].map((metricStep) => ({ key: 'loss', metricStep, value: 1 / (Number(metricStep) + 1) }));
  const score = { key: 'score', value: 3, stageId: stages.evalId };
  await client.runs.logMetrics({ runId: life.runId, points: [...points, score] });
  return { ...life, ...stages };
}

export async function makeStageScene(client: WireClient): Promise<StageScene> {
  const { run } = await client.runs.createRun({ plan: PLAN, initialStatus: Status.RUNNING });
  return { ...client, runId: run!.id, ...(await makeStages(client, run!.id)) };
}

export async function makeLifeScene(client: WireClient): Promise<LifeScene> {
  const { runs, trajectories } = client;
  await putState(client, FILE);
  const experimentName = `rpcs/${randomUUID()}`;
  const environmentName = `env/${experimentName}`;
  const { experiment } = await runs.createExperiment({
    name: experimentName,
    environmentName,
    agentType: 'pid',
    tags: ['a', 'b'],
    defaultConfigJson: '{"lr":0.1,"seed":1}',
  });
  const { run } = await runs.createRun({
    experimentName,
    name: 'main',
    configJson: '{"seed":2}',
    labels: LABELS,
    metadataJson: '{"by":"test"}',
    plan: PLAN,
    mainTrajectory: { root: { reward: 0 } },
    initialStatus: Status.RUNNING,
  });
  const [runId, mainId] = [run!.id, run!.mainTrajectoryId];
  await appendAll(
    client,
    mainId,
    [1n, 2n, 3n].map((stepNumber) => ({ stepNumber, reward: Number(stepNumber) })),
  );
  await trajectories.setTag({ trajectoryId: mainId, name: 'here', stepNumber: 1n });
  const [branchId, bare] = await Promise.all([
    makeBranch(client, runId),
    runs.createRun({ experimentName, name: 'bare' }),
  ]);
  const made = { experimentId: experiment!.id, experimentName, environmentName };
  return { ...client, ...made, runId, mainId, branchId, bareId: bare.run!.id };
}

/** The stage EVAL 1 of a run, RUNNING. Returns its id. */
export async function makeEval({ runs }: WireClient, runId: string): Promise<string> {
  const place = { runId, kind: StageKind.EVAL, number: 1n, initialStatus: Status.RUNNING };
  return (await runs.getOrCreateStage(place)).stage!.id;
}

/** Creates a rollout in a stage (EVAL 1 of `main`) and claims it. Returns its id. */
export async function claimOne({ rollouts, runs }: WireClient, stageId: string): Promise<string> {
  // Another case may have paused the run.
  const { stage } = await runs.getStage({ stageId });
  await runs.resumeRun({ runId: stage!.runId });
  const labels = { which: randomUUID() };
  const groups = (await rollouts.listGroups({ stageId })).groups.length;
  await rollouts.createRollouts({ stageId, rollouts: [{ groupNumber: BigInt(groups), number: 0n, labels }] });
  const { claims } = await rollouts.claimRollouts({ stageId, labels, workerId: 'worker' });
  return claims[0]!.rollout!.id;
}

async function makeBranch({ runs, trajectories }: WireClient, runId: string): Promise<string> {
  const config = { configOverridesJson: '{"lr":0.5}', removedConfigPaths: ['/lr'] };
  const overrides = { name: 'branch', ...config, labels: LABELS };
  const branch = await runs.branchRun({ runId, stepNumber: 1n, ...overrides, initialStatus: Status.RUNNING });
  const own = { stepNumber: 2n, reward: 5 };
  await trajectories.appendStep({ trajectoryId: branch.mainTrajectory!.id, step: own });
  await runs.completeRun({ runId: branch.run!.id, message: 'done', resultJson: '{"best":5}' });
  return branch.run!.id;
}

async function makeStages({ runs }: WireClient, runId: string) {
  const make = async (kind: StageKind, number: bigint, initialStatus: Status) =>
    (await runs.getOrCreateStage({ runId, kind, number, initialStatus, metadataJson: '{"n":1}' })).stage!.id;
  const trainedId = await make(StageKind.TRAIN_STEP, 1n, Status.RUNNING);
  await runs.updateStage({
    stageId: trainedId,
    updateMask: { paths: ['model_checkpoint_uri', 'completed_substeps', 'metrics'] },
    modelCheckpointUri: 's3://models/1',
    completedSubsteps: 6n,
    metrics: { loss: 0.5 },
  });
  await runs.completeStage({ stageId: trainedId, message: 'done' });
  const evalId = await make(StageKind.EVAL, 1n, Status.RUNNING);
  const baselineId = await make(StageKind.BASELINE, 0n, Status.PENDING);
  return { trainedId, evalId, baselineId };
}
