/** A training as CUA's code runs it, implemented with Anabranch: each call is made as docs/coming-from.md describes. */
import { timestampNow } from '@bufbuild/protobuf/wkt';
import type { Rollout } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { type Run, type Stage, StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, openMetricLogger } from '../../../src/client/index.ts';
import { RolloutRecorder } from './cua_recorder.ts';

export const RUN_NAME = 'cua_rl-2026-03-01-12-00';
const HYPERPARAMETERS = { model_name: 'Qwen3-VL-30B', learning_rate: 1e-5, lora_rank: 32, save_every: 2 };
/** Large enough to be stored as a state. */
export const SCREENSHOT = new Uint8Array(20_000).fill(7);

/** The start of its loop in every process: finds the run of that name, or creates it. */
export async function startTraining(client: AnabranchClient): Promise<{ run: Run; resumeStage: Stage | undefined }> {
  const { run, created, resumeStage } = await client.runs.createRun({
    name: RUN_NAME,
    ifExists: IfExists.RETURN_EXISTING,
    configJson: JSON.stringify(HYPERPARAMETERS),
    labels: { model: HYPERPARAMETERS.model_name },
    plan: {
      stagePlans: [
        { kind: StageKind.TRAIN_STEP, stages: 4, groupsPerStage: 1, groupSize: 2, maxTurns: 20, substeps: 2 },
      ],
      concurrency: 2,
    },
  });
  if (run === undefined) throw new Error('an answer without a run');
  if (created) await client.runs.startRun({ runId: run.id, phase: 'initialization' });
  return { run, resumeStage };
}

export async function stageOf(client: AnabranchClient, run: Run, kind: StageKind, number: number): Promise<Stage> {
  const { stage } = await client.runs.getOrCreateStage({ runId: run.id, kind, number: BigInt(number) });
  if (stage === undefined) throw new Error('an answer without a stage');
  return stage;
}

/** Two rollouts of one task, created together and claimed by their workers: one succeeds, one loses its environment. */
async function collect(client: AnabranchClient, run: Run, stageId: string): Promise<void> {
  const { environments } = await client.rollouts.listEnvironments({ runId: run.id });
  await client.rollouts.createRollouts({
    stageId,
    rollouts: [0n, 1n].map((number) => ({
      groupNumber: 0n,
      number,
      taskId: 'airbnb_search',
      labels: { model: HYPERPARAMETERS.model_name },
    })),
  });
  await client.runs.closeQueue({ stageId });
  for (const number of [0, 1]) {
    const recorder = await RolloutRecorder.start(client, { stageId }, `worker ${number}`);
    if (recorder === undefined) throw new Error('a rollout that nobody else claims was not claimed');
    await recorder.updateStatus('env_creation');
    await recorder.update({ temperature: 0.7, parse_errors: 0 }, environments.map(({ id }) => id).slice(0, 1));
    await recorder.updateStatus('agent_init');
    await recorder.updateStatus('task_execution');
    const turn = { said: 'I tap.', tool: 'tap', args: { x: 540 }, tokens: [7, 8, 9], screenshot: SCREENSHOT };
    await recorder.recordTurn({ ...turn, reward: 0.5 });
    if (number === 1) {
      await recorder.fail('the box did not answer');
      continue;
    }
    await recorder.recordTurn({ ...turn, reward: 0.5, done: true });
    await recorder.recordValidation(true, 'results');
    await recorder.complete(true);
  }
}

export async function rolloutOf(client: AnabranchClient, step: number, number: number): Promise<Rollout> {
  const { run } = await client.runs.getRun({ runName: RUN_NAME });
  const { id } = await stageOf(client, run!, StageKind.TRAIN_STEP, step);
  const { rollouts } = await client.rollouts.listRollouts({ stageId: id });
  const found = rollouts.find((each) => each.number === BigInt(number));
  if (found === undefined) throw new Error(`step ${step} has no rollout ${number}`);
  return found;
}

/** One step: rollouts, two substeps of training, its metrics, and a model checkpoint at every second step. */
export async function train(client: AnabranchClient, run: Run, number: number): Promise<void> {
  const { id: stageId, status } = await stageOf(client, run, StageKind.TRAIN_STEP, number);
  if (status === Status.FAILED) await client.runs.reopenStage({ stageId, phase: 'rollout_execution' });
  else await client.runs.startStage({ stageId, phase: 'rollout_execution' });
  const begin = timestampNow();
  await collect(client, run, stageId);
  await client.runs.updateStage({
    stageId,
    updateMask: { paths: ['phase', 'timings'] },
    phase: 'training',
    timings: { rollout: { startTime: begin, endTime: timestampNow() } },
  });
  for (const substep of [1n, 2n])
    await client.runs.updateStage({
      stageId,
      updateMask: { paths: ['completed_substeps'] },
      completedSubsteps: substep,
    });
  await using curves = openMetricLogger(client, { runId: run.id });
  curves.log('train/loss', number, 1 / (number + 1));
  await client.runs.updateStage({
    stageId,
    updateMask: { paths: ['metrics', 'model_checkpoint_uri'] },
    metrics: { loss: 1 / (number + 1), reward_mean: number },
    modelCheckpointUri: number % 2 === 1 ? `tinker://weights/${number}` : '',
  });
  await client.runs.completeStage({ stageId });
}

export async function recordResults(
  client: AnabranchClient,
  { id }: Stage,
  metrics: Record<string, number>,
): Promise<void> {
  await client.runs.updateStage({ stageId: id, updateMask: { paths: ['metrics'] }, metrics });
  await client.runs.completeStage({ stageId: id });
}
