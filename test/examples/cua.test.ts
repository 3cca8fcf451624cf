import { timestampDate, timestampNow } from '@bufbuild/protobuf/wkt';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Rollout } from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { Claim, ClaimRolloutsRequest } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { type Run, type Stage, StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { StageOrder } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type AnabranchClient,
  downloadState,
  openMetricLogger,
  openWriter,
  readSteps,
  reasonOf,
  type TrajectoryWriter,
  watchRun,
} from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { type Served, startServed } from './served.ts';

const RUN_NAME = 'cua_rl-2026-03-01-12-00';
const HYPERPARAMETERS = { model_name: 'Qwen3-VL-30B', learning_rate: 1e-5, lora_rank: 32, save_every: 2 };
/** Large enough to be stored as a state. */
const SCREENSHOT = new Uint8Array(20_000).fill(7);

/**
 * The query examples in CUA's document, and the calls of its recording code, made here by a training of four steps that
 * crashes in its third.
 */
describe.each(ENGINES)('CUA, on %s:', (engine) => {
  let served: Served;
  let client: AnabranchClient;
  beforeAll(async () => {
    served = await startServed(engine);
    client = served.client;
  });
  afterAll(() => served?.stop());

  it('C-08, C-09, C-31, C-32: saves its tasks and their validators, saves them again without a change, and loads them', async () => {
    const tasks = ['airbnb_search', 'dark_mode'].map((id) => ({
      id,
      description: `Do ${id}.`,
      difficulty: 'easy',
      sourceType: 'demo_training',
      tags: { values: ['demo'] },
      maxTurns: 20n,
    }));
    expect(await client.rollouts.upsertTasks({ tasks })).toMatchObject({ createdCount: 2, unchangedCount: 0 });
    expect(await client.rollouts.upsertTasks({ tasks })).toMatchObject({ createdCount: 0, unchangedCount: 2 });
    await client.rollouts.upsertTasks({ tasks: [{ id: 'dark_mode', difficulty: 'medium' }] });
    const loaded = await client.rollouts.listTasks({ taskIds: ['dark_mode', 'airbnb_search', 'unknown'] });
    expect(loaded.tasks.map(({ id, difficulty }) => [id, difficulty]).toSorted()).toEqual([
      ['airbnb_search', 'easy'],
      ['dark_mode', 'medium'],
    ]);
    const { task } = await client.rollouts.getTask({ taskId: 'dark_mode' });
    expect(task).toMatchObject({ description: 'Do dark_mode.', tags: ['demo'], maxTurns: 20n });

    const validators = { state: { query: 'current_activity', method: 'adb' } };
    const judged = { tasks: [{ id: 'airbnb_search', validators }] };
    expect(await client.rollouts.upsertTasks(judged)).toMatchObject({ updatedCount: 1 });
    const { task: found } = await client.rollouts.getTask({ taskId: 'airbnb_search' });
    expect(found?.validators).toMatchObject(validators);
    expect(await client.rollouts.upsertTasks(judged)).toMatchObject({ unchangedCount: 1 });
    expect((await client.rollouts.getTask({ taskId: 'airbnb_search' })).task).toEqual(found);
  });

  it('C-07, C-12, C-14, C-30, C-39, C-41 to C-45: records a training with its baseline, steps, evals and curves', async () => {
    const { run, resumeStage } = await startTraining(client);
    expect(resumeStage).toBeUndefined();
    const box = { runId: run.id, environmentId: crypto.randomUUID() };
    await client.rollouts.upsertEnvironment({ ...box, type: 'android' });
    await client.rollouts.upsertEnvironment({ ...box, status: Status.RUNNING, externalId: 'gbox-7f3a' });
    const baseline = await stageOf(client, run, StageKind.BASELINE, 0);
    await client.runs.startStage({ stageId: baseline.id, phase: 'rollout' });
    await recordResults(client, baseline, { success_rate: 0.25 });
    for (const number of [0, 1]) await train(client, run, number);
    const evaluation = await stageOf(client, run, StageKind.EVAL, 1);
    await client.runs.startStage({ stageId: evaluation.id });
    await recordResults(client, evaluation, { success_rate: 0.5 });

    // The third step fails, and its process crashes.
    const third = await stageOf(client, run, StageKind.TRAIN_STEP, 2);
    await client.runs.startStage({ stageId: third.id, phase: 'rollout_execution' });
    await client.runs.failStage({ stageId: third.id, message: 'CUDA out of memory' });
    await client.runs.failRun({ runId: run.id, message: 'CUDA out of memory', metadataJson: '{"host": "gpu-7"}' });
  });

  it('C-33: is found again by its name, and continues after the last step with a checkpoint', async () => {
    const { run, resumeStage } = await startTraining(client);
    expect(run.status).toBe(Status.FAILED);
    expect(resumeStage).toMatchObject({ number: 1n, modelCheckpointUri: 'tinker://weights/1' });
    const { stages } = await client.runs.listStages({
      runId: run.id,
      kinds: [StageKind.TRAIN_STEP],
      statuses: [Status.COMPLETED],
      hasCheckpoint: true,
      order: StageOrder.NUMBER,
      descending: true,
      pageSize: 1,
    });
    expect(stages).toEqual([resumeStage]);

    await client.runs.reopenRun({ runId: run.id, message: 'restarted' });
    expect(await client.runs.heartbeatRun({ runId: run.id })).toMatchObject({ status: Status.RUNNING });
    for (const number of [2, 3]) await train(client, run, number);
    await client.runs.updateRun({
      runId: run.id,
      updateMask: { paths: ['phase', 'status_message'] },
      phase: 'checkpointing',
      statusMessage: 'Saving the last weights',
    });
  });

  it('C-11, C-18, C-35, C-52: has groups that count their rollouts, and returns the existing group for the same key', async () => {
    const { stageId, groupId } = await rolloutOf(client, 1, 0);
    const { group, created } = await client.rollouts.upsertGroup({ stageId, number: 0n });
    expect([group?.id, group?.batch, created]).toEqual([groupId, undefined, false]);
    await client.rollouts.upsertGroup({ stageId, number: 0n, batch: 1n, metrics: { advantage_max: 0.5 } });
    const { groups } = await client.rollouts.listGroups({ stageId });
    const { group: found } = await client.rollouts.getGroup({ stageId, number: 0n });
    expect(groups.map(({ id }) => id)).toEqual([found?.id]);
    expect(found).toMatchObject({ status: Status.COMPLETED, batch: 1n, metrics: { advantage_max: 0.5 } });
    expect(found?.statistics).toMatchObject({ rolloutCount: 2n, successCount: 1n, rewardMean: 0.75, bestReward: 1 });
    const { rollouts } = await client.rollouts.listRollouts({ groupId, taskId: 'airbnb_search', success: true });
    expect(rollouts.map(({ id }) => id)).toEqual([found?.statistics?.bestRolloutId]);
  });

  it('C-13, C-34, C-36, C-37, C-44, C-53 to C-55: a turn is one step, with its actions and screenshots, found by its number', async () => {
    const { id: rolloutId, trajectoryId } = await rolloutOf(client, 1, 0);
    const record = await client.rollouts.getRollout({ rolloutId });
    expect(record.validations).toMatchObject([{ name: 'state', success: true, actualResult: 'results' }]);
    expect(record.attempts).toMatchObject([{ number: 1, status: Status.COMPLETED, trajectoryId }]);
    const { step } = await client.trajectories.getStep({ trajectoryId, stepNumber: 2n });
    expect(step?.actions.map(({ type, name, tokenIds }) => [type, name, tokenIds])).toEqual([
      ['text', '', [7, 8, 9]],
      ['tool_call', 'tap', []],
    ]);
    const digests: string[] = [];
    for await (const { step: each } of readSteps(client, { trajectoryId, startStepNumber: 1n }))
      digests.push(each.observations[0]?.content?.stateDigest ?? '');
    expect(digests).toEqual([digests[0], digests[0]]);
    expect(await downloadState(client, digests[0] ?? '')).toEqual(SCREENSHOT);
  });

  it('C-45, K-C1, K-C4: a worker that is late gets LEASE_LOST, and another one has its rollout', async () => {
    const { run } = await client.runs.createRun({ name: 'of lost workers' });
    const stage = await stageOf(client, run!, StageKind.EVAL, 0);
    const place = { groupNumber: 0n, maxAttempts: 2, taskId: 'airbnb_search' };
    await client.rollouts.createRollouts({
      stageId: stage.id,
      rollouts: [0n, 1n, 2n].map((number) => ({ ...place, number })),
    });
    await client.runs.closeQueue({ stageId: stage.id });
    const late = (await RolloutRecorder.start(client, { stageId: stage.id }, 'worker 1'))!;
    const lease = { rolloutId: late.token.rolloutId, attempt: 1 };
    const { leases } = await client.rollouts.heartbeatRollouts({ leases: [lease] });
    expect(leases).toMatchObject([{ kept: true, status: Status.INITIALIZING }]);
    await late.recordValidation(false, 'other dates');
    await client.rollouts.releaseRollout({ ...lease, message: 'preempted', refundAttempt: true });
    const next = (await RolloutRecorder.start(client, { stageId: stage.id }, 'worker 2'))!;
    expect(next.token).toEqual({ ...lease, attempt: 2 });
    const refused = await late.updateStatus('task_execution').catch((error: unknown) => error);
    expect(reasonOf(refused)).toBe('LEASE_LOST');
    await late.leave().catch((error: unknown) => expect(reasonOf(error)).toBe('TRAJECTORY_SEALED'));

    await next.fail('the box is afterDelete');
    const { rollout: retried } = await client.rollouts.retryRollout({ ...next.token, message: 'new box' });
    expect(retried).toMatchObject({ status: Status.PENDING, attempt: 2, maxAttempts: 2, refundedAttempts: 1 });
    const third = (await RolloutRecorder.start(client, { stageId: stage.id }, 'worker 2'))!;
    await third.complete(true);
    const { attempts } = await client.rollouts.getRollout({ rolloutId: lease.rolloutId });
    expect(attempts.map(({ status, message, success }) => [status, message, success])).toEqual([
      [Status.FAILED, 'preempted', false],
      [Status.FAILED, 'the box is afterDelete', undefined],
      [Status.COMPLETED, '', true],
    ]);
    const { rollouts } = await client.rollouts.listRollouts({ stageId: stage.id, statuses: [Status.PENDING] });
    for (const { id } of rollouts) await client.rollouts.cancelRollout({ rolloutId: id });
    const { claims, drained } = await client.rollouts.claimRollouts({ stageId: stage.id, workerId: 'worker 3' });
    expect([claims, drained]).toEqual([[], true]);
    await client.runs.deleteRun({ runId: run?.id ?? '' });
  });

  it('K-C3: has curves of every step, for many runs at once', async () => {
    const { run } = await client.runs.getRun({ runName: RUN_NAME });
    const read: [string, number[]][] = [];
    for await (const { series } of client.runs.readMetrics({ runIds: [run?.id ?? ''], keys: ['train/loss'] }))
      for (const { key, values } of series) read.push([key, values]);
    expect(read).toEqual([['train/loss', [1, 0.5, 1 / 3, 0.25]]]);
  });

  it('C-16, C-17, C-19, C-40: answers the queries in the document of CUA', async () => {
    const { run: training } = await client.runs.getRun({ runName: RUN_NAME });
    const runId = training?.id ?? '';
    expect(training?.status).toBe(Status.RUNNING);
    const { progress } = await client.runs.getRun({ runId, progress: true });
    expect(progress?.percent).toBe(100);

    const { stages } = await client.runs.listStages({ runId, kinds: [StageKind.TRAIN_STEP] });
    expect(stages.map(({ number, status }) => [number, status])).toEqual(
      [0n, 1n, 2n, 3n].map((number) => [number, Status.COMPLETED]),
    );
    // "Query all rollouts for a step"
    const { rollouts } = await client.rollouts.listRollouts({ stageId: stages[1]?.id ?? '' });
    expect(
      rollouts.map(({ number, status, success, reward, turns }) => [number, status, success, reward, turns]),
    ).toEqual([
      [0n, Status.COMPLETED, true, 1, 2n],
      [1n, Status.FAILED, false, 0.5, 1n],
    ]);

    const { changes } = await client.runs.listStatusChanges({ runId });
    expect(changes.map(({ oldStatus, newStatus, message }) => [oldStatus, newStatus, message])).toEqual([
      [Status.FAILED, Status.RUNNING, 'restarted'],
      [Status.RUNNING, Status.FAILED, 'CUDA out of memory'],
      [Status.PENDING, Status.RUNNING, ''],
      [Status.UNSPECIFIED, Status.PENDING, ''],
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

  it('K-C5: changes its status only by verbs, notifies watchers, and keeps its terminal status', async () => {
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
});

/** The start of its loop in every process: finds the run of that name, or creates it. */
async function startTraining(client: AnabranchClient): Promise<{ run: Run; resumeStage: Stage | undefined }> {
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

async function stageOf(client: AnabranchClient, run: Run, kind: StageKind, number: number): Promise<Stage> {
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

async function rolloutOf(client: AnabranchClient, step: number, number: number): Promise<Rollout> {
  const { run } = await client.runs.getRun({ runName: RUN_NAME });
  const { id } = await stageOf(client, run!, StageKind.TRAIN_STEP, step);
  const { rollouts } = await client.rollouts.listRollouts({ stageId: id });
  const found = rollouts.find((each) => each.number === BigInt(number));
  if (found === undefined) throw new Error(`step ${step} has no rollout ${number}`);
  return found;
}

/** One step: rollouts, two substeps of training, its metrics, and a model checkpoint at every second step. */
async function train(client: AnabranchClient, run: Run, number: number): Promise<void> {
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

async function recordResults(client: AnabranchClient, { id }: Stage, metrics: Record<string, number>): Promise<void> {
  await client.runs.updateStage({ stageId: id, updateMask: { paths: ['metrics'] }, metrics });
  await client.runs.completeStage({ stageId: id });
}

interface Turn {
  readonly said: string;
  readonly tool: string;
  readonly args: object;
  readonly tokens: readonly number[];
  readonly reward?: number;
  readonly done?: boolean;
  readonly screenshot: Uint8Array<ArrayBuffer>;
}

/** The recorder of one rollout, as CUA has it. */
class RolloutRecorder {
  readonly #client: AnabranchClient;
  readonly #claim: Claim;
  readonly #writer: TrajectoryWriter;

  private constructor(client: AnabranchClient, claim: Claim, writer: TrajectoryWriter) {
    this.#client = client;
    this.#claim = claim;
    this.#writer = writer;
  }

  /** The next matching rollout, with the attempt that every later call names; undefined if nothing is left. */
  static async start(
    client: AnabranchClient,
    what: Partial<Pick<ClaimRolloutsRequest, 'stageId' | 'labels' | 'requestId'>>,
    workerId: string,
  ): Promise<RolloutRecorder | undefined> {
    const { claims } = await client.rollouts.claimRollouts({ ...what, workerId });
    const [claim] = claims;
    if (claim?.trajectory === undefined) return undefined;
    const { id: trajectoryId, uid } = claim.trajectory;
    const writer = await openWriter(client, { trajectoryId, uid });
    await writer.append({ observations: [{ type: 'task', content: { text: claim.task?.description ?? '' } }] });
    return new RolloutRecorder(client, claim, writer);
  }

  get token(): { readonly rolloutId: string; readonly attempt: number } {
    return { rolloutId: this.#claim.rollout?.id ?? '', attempt: this.#claim.rollout?.attempt ?? 0 };
  }

  get trajectoryId(): string {
    return this.#writer.trajectoryId;
  }

  /** `env_creation` and `agent_init` are phases; the task itself starts by a verb. */
  async updateStatus(phase: 'env_creation' | 'agent_init' | 'task_execution'): Promise<void> {
    if (phase === 'task_execution') await this.#client.rollouts.startRollout({ ...this.token, phase });
    else await this.#client.rollouts.updateRollout({ ...this.token, updateMask: { paths: ['phase'] }, phase });
  }

  async update(metrics: { [name: string]: number }, environmentIds: string[]): Promise<void> {
    const updateMask = { paths: ['metrics', 'timings', 'environment_ids'] };
    const timings = { env_creation: { endTime: timestampNow() } };
    await this.#client.rollouts.updateRollout({ ...this.token, updateMask, metrics, timings, environmentIds });
  }

  async recordTurn({ said, tool, args, tokens, reward, done = false, screenshot }: Turn): Promise<void> {
    await this.#writer.append({
      actions: [
        { type: 'text', content: { text: said }, tokenIds: [...tokens] },
        { type: 'tool_call', name: tool, callId: 'call-1', content: { json: JSON.stringify(args) } },
      ],
      observations: [
        { type: 'screenshot_after', callId: 'call-1', content: { data: screenshot, mediaType: 'image/png' } },
      ],
      reward,
      terminated: done,
    });
  }

  async recordValidation(success: boolean, actualResult: string): Promise<void> {
    const [name = ''] = Object.keys(this.#claim.task?.validators ?? {});
    await this.#client.rollouts.recordValidation({ ...this.token, validation: { name, success, actualResult } });
  }

  /** The end of the trajectory is named, so that no turn in transit is cut off. */
  async complete(success: boolean): Promise<void> {
    await this.#writer.flush();
    await this.#client.rollouts.completeRollout({
      ...this.token,
      result: { taskCompleted: true, agentReportedSuccess: true, success },
      expectedNextStepNumber: this.#writer.nextStepNumber,
    });
    await this.#writer.close();
  }

  async fail(message: string): Promise<void> {
    await this.#writer.close();
    await this.#client.rollouts.failRollout({ ...this.token, message });
  }

  /** The process has crashed; it does not release its lease. */
  async leave(): Promise<void> {
    await this.#writer.close();
  }
}
