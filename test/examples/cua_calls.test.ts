import { timestampDate, timestampNow } from '@bufbuild/protobuf/wkt';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Run, type Stage, StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, openMetricLogger, reasonOf, watchRun } from '../../src/client/index.ts';
import { callsOf } from '../docs/coming_from.ts';
import { ENGINES } from '../support/database.ts';
import { type Recording, startRecording } from './seeds/recording.ts';
import { fromStatus } from './seeds/rows.ts';

const RUN_NAME = 'cua_rl-2026-03-01-12-00';
const HYPERPARAMETERS = { model_name: 'Qwen3-VL-30B', learning_rate: 1e-5, lora_rank: 32, save_every: 2 };

/** The query examples of CUA's document, and the calls of its recording code, made here by a training of four steps that crashes in its third. */
describe.each(ENGINES)('CUA, on %s:', (engine) => {
  let recording: Recording;
  let client: AnabranchClient;
  beforeAll(async () => {
    recording = await startRecording(engine);
    client = recording.client;
  });
  afterAll(() => recording?.stop());

  it('C-07, C-41 to C-43: records a training with its baseline, steps, evals and curves', async () => {
    const { run, resumeStage } = await startTraining();
    expect(resumeStage).toBeUndefined();
    const baseline = await stageOf(run, StageKind.BASELINE, 0);
    await client.runs.startStage({ stageId: baseline.id, phase: 'rollout' });
    await recordResults(baseline, { success_rate: 0.25 });
    for (const number of [0, 1]) await train(run, number);
    const evaluation = await stageOf(run, StageKind.EVAL, 1);
    await client.runs.startStage({ stageId: evaluation.id });
    await recordResults(evaluation, { success_rate: 0.5 });

    // The third step fails, and the process with it.
    const third = await stageOf(run, StageKind.TRAIN_STEP, 2);
    await client.runs.startStage({ stageId: third.id, phase: 'rollout_execution' });
    await client.runs.failStage({ stageId: third.id, message: 'CUDA out of memory' });
    await client.runs.failRun({ runId: run.id, message: 'CUDA out of memory', metadataJson: '{"host": "gpu-7"}' });
  });

  it('C-33: is found again by its name, and goes on after the last step that has a checkpoint', async () => {
    const { run, resumeStage } = await startTraining();
    expect(run.status).toBe(Status.FAILED);
    expect(resumeStage).toMatchObject({ number: 1n, modelCheckpointUri: 'tinker://weights/1' });
    const { stage } = await client.runs.getLatestCheckpointedStage({ runId: run.id });
    expect(stage).toEqual(resumeStage);

    await client.runs.reopenRun({ runId: run.id, message: 'restarted' });
    expect(await client.runs.heartbeatRun({ runId: run.id })).toMatchObject({ status: Status.RUNNING });
    for (const number of [2, 3]) await train(run, number);
    await client.runs.updateRun({
      runId: run.id,
      updateMask: { paths: ['phase', 'status_message'] },
      phase: 'checkpointing',
      statusMessage: 'Saving the last weights',
    });
  });

  it('K-C3: has curves of every step, for many runs at once', async () => {
    const { run } = await client.runs.getRun({ runName: RUN_NAME });
    const read: [string, number[]][] = [];
    for await (const { series } of client.runs.readMetrics({ runIds: [run?.id ?? ''], keys: ['train/loss'] }))
      for (const { key, values } of series) read.push([key, values]);
    expect(read).toEqual([['train/loss', [1, 0.5, 1 / 3, 0.25]]]);
  });

  it('C-16, C-17, C-19: answers the queries of the document', async () => {
    const { run: training } = await client.runs.getRun({ runName: RUN_NAME });
    const runId = training?.id ?? '';
    expect(fromStatus(training?.status ?? 0)).toBe('running');
    const { progress } = await client.runs.getProgress({ runId });
    expect(progress?.percent).toBe(100);

    const { stages } = await client.runs.listStages({ runId, kinds: [StageKind.TRAIN_STEP] });
    expect(stages.map(({ number, status }) => [number, fromStatus(status)])).toEqual([
      [0n, 'completed'],
      [1n, 'completed'],
      [2n, 'completed'],
      [3n, 'completed'],
    ]);
    // "Query all rollouts for a step": until there are rollouts, by label.
    const { trajectories } = await client.trajectories.listTrajectories({ runId, labels: { step: '1' } });
    expect(trajectories.map(({ name }) => name)).toEqual(['step 1, rollout 1', 'step 1, rollout 0']);

    const { changes } = await client.runs.listStatusChanges({ runId });
    const told = changes.map(({ oldStatus, newStatus, message }) => [
      fromStatus(oldStatus),
      fromStatus(newStatus),
      message,
    ]);
    expect(told).toEqual([
      ['failed', 'running', 'restarted'],
      ['running', 'failed', 'CUDA out of memory'],
      ['pending', 'running', ''],
      ['', 'pending', ''],
    ]);
    for (const { changeTime } of changes) expect(timestampDate(changeTime!).getTime()).toBeGreaterThan(0);
  });

  it('C-50, C-51: shows the list with progress, and the timeline of a training', async () => {
    const { runs } = await client.runs.listRuns({ statuses: [Status.RUNNING] });
    expect(runs.map(({ run, progress }) => [run?.name, run?.stale, progress?.percent])).toEqual([
      [RUN_NAME, false, 100],
    ]);
    const { stages } = await client.runs.listStages({ runId: runs[0]?.run?.id ?? '' });
    expect(stages.map(({ kind, number }) => `${StageKind[kind]} ${number}`)).toEqual([
      'BASELINE 0',
      'TRAIN_STEP 0',
      'TRAIN_STEP 1',
      'EVAL 1',
      'TRAIN_STEP 2',
      'TRAIN_STEP 3',
    ]);
    const [, , , evaluation] = stages;
    const place = { runId: evaluation?.runId ?? '', kind: StageKind.EVAL, number: 1n };
    expect((await client.runs.getStage(place)).stage?.id).toBe(evaluation?.id);
  });

  it('K-C5: moves by verbs alone, tells who watches, and stays as it ended', async () => {
    const { run } = await client.runs.getRun({ runName: RUN_NAME });
    const runId = run?.id ?? '';
    const seen: Status[] = [];
    const first = Promise.withResolvers<void>();
    const watched = (async () => {
      for await (const picture of watchRun(client, { runId, untilTerminal: true })) {
        if (seen.length === 0) first.resolve();
        seen.push(picture.run.status);
      }
    })();
    await first.promise;
    await client.runs.pauseRun({ runId });
    const { stage } = await client.runs.getStage({ runId, kind: StageKind.TRAIN_STEP, number: 3n });
    await client.runs.updateStage({
      stageId: stage?.id ?? '',
      updateMask: { paths: ['metrics'] },
      metrics: { late: 1 },
    });
    expect((await client.runs.getRun({ runId })).run?.status).toBe(Status.PAUSED);
    await client.runs.resumeRun({ runId });
    await client.runs.completeRun({ runId, message: 'done', resultJson: '{"success_rate": 0.5}' });
    await watched;
    expect(seen.at(-1)).toBe(Status.COMPLETED);
    const started = await client.runs.startRun({ runId }).catch((error: unknown) => error);
    expect(reasonOf(started)).toBe('ILLEGAL_TRANSITION');
  });

  it('K-C9: is cancelled and deleted whole', async () => {
    const { run } = await client.runs.createRun({ name: 'by mistake' });
    const runId = run?.id ?? '';
    await stageOf(run!, StageKind.TRAIN_STEP, 0);
    await client.trajectories.createTrajectory({ runId });
    await client.runs.cancelRun({ runId });
    expect(await client.runs.deleteRun({ runId })).toMatchObject({ deletedRuns: 1n, deletedTrajectories: 1n });
    const gone = await client.runs.getRun({ runId }).catch((error: unknown) => error);
    expect(reasonOf(gone)).toBe('RUN_NOT_FOUND');
  });

  it('every call that docs/coming-from.md names was made', () => {
    expect(callsOf('CUA').filter((call) => !recording.called.has(call))).toEqual([]);
  });

  /** What its loop does first, in every process: the run of that name, or a new one. */
  async function startTraining(): Promise<{ run: Run; resumeStage: Stage | undefined }> {
    const { run, created, resumeStage } = await client.runs.createRun({
      name: RUN_NAME,
      ifExists: IfExists.RETURN_EXISTING,
      configJson: JSON.stringify(HYPERPARAMETERS),
      labels: { model: HYPERPARAMETERS.model_name },
      plan: { stagePlans: [{ kind: StageKind.TRAIN_STEP, stages: 4, substeps: 2 }] },
    });
    if (run === undefined) throw new Error('an answer without a run');
    if (created) await client.runs.startRun({ runId: run.id, phase: 'initialization' });
    return { run, resumeStage };
  }

  async function stageOf(run: Run, kind: StageKind, number: number): Promise<Stage> {
    const { stage } = await client.runs.getOrCreateStage({ runId: run.id, kind, number: BigInt(number) });
    if (stage === undefined) throw new Error('an answer without a stage');
    return stage;
  }

  /** One step: rollouts, two substeps of training, its metrics, and weights at every second. */
  async function train(run: Run, number: number): Promise<void> {
    const { id: stageId, status } = await stageOf(run, StageKind.TRAIN_STEP, number);
    if (status === Status.FAILED) await client.runs.reopenStage({ stageId, phase: 'rollout_execution' });
    else await client.runs.startStage({ stageId, phase: 'rollout_execution' });
    const [begin, labels] = [timestampNow(), { step: `${number}` }];
    for (const rollout of [0, 1])
      await client.trajectories.createTrajectory({ runId: run.id, name: `step ${number}, rollout ${rollout}`, labels });
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

  async function recordResults({ id }: Stage, metrics: Record<string, number>): Promise<void> {
    await client.runs.updateStage({ stageId: id, updateMask: { paths: ['metrics'] }, metrics });
    await client.runs.completeStage({ stageId: id });
  }
});
