import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { OnSuccess, type Rollout } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists, type Step, type Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepOrder } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, openWriter, readSteps, reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { type Served, startServed } from './served.ts';

/** The code examples in FLE's document, and the calls of the code behind it, made here. */
describe.each(ENGINES)('FLE, on %s:', (engine) => {
  let served: Served;
  let client: AnabranchClient;
  beforeAll(async () => {
    served = await startServed(engine);
    client = served.client;
  });
  afterAll(() => served?.stop());

  it('F-05 to F-09, F-12, F-14, F-16 to F-18: saves checkpoints, finds them by number and the latest one, and continues from any', async () => {
    const db = new FleClient(client);
    const trajectoryId = await db.createTrajectory('iron_plate_throughput', { model: 'claude', seed: 7 });
    const factory = new Factory();
    for (const stepNumber of [1, 2, 3]) {
      const [feedback] = factory.step('mine');
      await db.saveCheckpoint(trajectoryId, {
        stepNumber,
        agentCode: 'mine()',
        environmentFeedback: feedback,
        gameState: factory.save(),
      });
    }
    await db.saveStep(trajectoryId, { stepNumber: 4, agentCode: 'sleep()', environmentFeedback: '' });

    const checkpoint = await db.getCheckpoint(trajectoryId, 2);
    expect(checkpoint.gameState).toBe('{"plates":2}');
    expect(await db.getLatestCheckpoint(trajectoryId)).toMatchObject({ stepNumber: 3, gameState: '{"plates":3}' });
    expect(await db.countSteps(trajectoryId)).toBe(4);
    expect((await db.getTrajectorySteps(trajectoryId)).map(({ stepNumber }) => stepNumber)).toEqual([1n, 2n, 3n, 4n]);

    // Resuming from a step that is not the last creates a branch, which continues with the next number. No step is
    // deleted.
    factory.load(checkpoint.gameState);
    const { trajectory: branch } = await client.trajectories.branchTrajectory({ trajectoryId, stepNumber: 2n });
    await using writer = await openWriter(client, { trajectoryId: branch?.id ?? '' });
    const [obs, reward, done, truncated, info] = factory.step('smelt');
    const { stepNumber } = await writer.append({
      observations: [{ type: 'response', content: { text: obs } }],
      reward,
      terminated: done,
      truncated,
      info,
      states: { env: new TextEncoder().encode(factory.save()) },
    });
    expect(stepNumber).toBe(3n);
    expect(await db.getLatestCheckpoint(branch?.id ?? '')).toMatchObject({ gameState: '{"plates":4}' });
    expect(await db.countSteps(trajectoryId)).toBe(4);
  });

  it('F-11, F-13 to F-15: lists all trajectories and those of a task, and deletes one', async () => {
    const db = new FleClient(client);
    const ids = [];
    for (const n of [1, 2, 3]) ids.push(await db.createTrajectory('deletions', { n }));
    expect((await db.getTaskTrajectories('deletions')).map(({ id }) => id)).toEqual(ids.toReversed());
    expect((await db.getAllTrajectories()).length).toBeGreaterThanOrEqual(5);
    await db.deleteTrajectory(ids[1] ?? '');
    expect(await Promise.all(ids.map((id) => db.trajectoryExists(id)))).toEqual([true, false, true]);
  });

  it('F-30, F-31: numbers its versions, finds their configs, and refuses another model', async () => {
    const model = (name: string) => ({ configJson: JSON.stringify({ model: name }), labels: { model: name } });
    const next = () => client.runs.createRun(model('claude'));
    const runs = await Promise.all([next(), next(), next(), next()]);
    const numbers = runs.map(({ run }) => Number(run?.number)).sort((a, b) => a - b);
    expect(numbers).toEqual([1, 2, 3, 4].map((i) => (numbers[0] ?? 0) + i - 1));

    await client.runs.createRun({ name: 'version 8', ...model('claude') });
    const { run } = await client.runs.getRun({ runName: 'version 8' });
    expect(run?.labels).toEqual({ model: 'claude' });
    const again = { name: 'version 8', ifExists: IfExists.RETURN_EXISTING };
    expect((await client.runs.createRun({ ...again, ...model('claude') })).created).toBe(false);
    const refused = await client.runs.createRun({ ...again, ...model('gpt') }).catch((error: unknown) => error);
    expect(reasonOf(refused)).toBe('CONFIG_MISMATCH');
  });

  it('F-32, F-36, F-40, F-42: keeps the agents of one version apart, and returns its heads, rewards and summaries', async () => {
    const { run } = await client.runs.createRun({});
    const runId = run?.id ?? '';
    for (const agent of [0, 1]) {
      const trajectoryId = crypto.randomUUID();
      const labels = { instance: `${agent}` };
      await client.trajectories.createTrajectory({ trajectoryId, runId, labels, root: {} });
      await using writer = await openWriter(client, { trajectoryId });
      for (const reward of [1, 5 + agent, 2])
        void writer.append({ reward, states: { env: new TextEncoder().encode(`${agent} ${reward}`) } });
    }
    const { steps } = await client.trajectories.listSteps({
      runId,
      order: StepOrder.REWARD,
      descending: true,
      hasState: 'env',
      pageSize: 3,
    });
    expect(steps.map(({ step }) => step?.reward)).toEqual([6, 5, 2]);
    const { trajectories } = await client.trajectories.listTrajectories({ runId });
    expect(trajectories.map(({ labels, rewardSum }) => [labels.instance, rewardSum])).toEqual([
      ['1', 9],
      ['0', 8],
    ]);
    const [second] = (await client.trajectories.listTrajectories({ runId, labels: { instance: '1' } })).trajectories;
    const { step } = await client.trajectories.getCheckpoint({ trajectoryId: second?.id ?? '' });
    expect(step?.stepNumber).toBe(3n);
  });

  it('F-43, F-44, F-46 to F-49: sweeps models over tasks, stops early, resumes, and compares', async () => {
    const [models, tasks, trials] = [
      ['claude', 'gpt'],
      ['gears', 'plates'],
      [0n, 1n, 2n],
    ];
    await client.rollouts.upsertTasks({ tasks: tasks.map((id) => ({ id, description: `Make ${id}.` })) });
    const { run } = await client.runs.createRun({ name: 'sweep-3' });
    const runId = run?.id ?? '';
    const { stage } = await client.runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number: 0n });
    const stageId = stage?.id ?? '';
    const sweep = () =>
      client.rollouts.createRollouts({
        stageId,
        rollouts: models.flatMap((model, m) =>
          tasks.flatMap((taskId, t) =>
            trials.map((number) => ({
              groupNumber: BigInt(m * tasks.length + t),
              number,
              taskId,
              labels: { model },
              maxAttempts: 2,
              retryDelay: {},
              onSuccess: OnSuccess.CANCEL_PENDING,
            })),
          ),
        ),
      });
    expect((await sweep()).rollouts.filter(({ existed }) => existed)).toEqual([]);
    await client.runs.closeQueue({ stageId });

    // The first process releases one trial, fails one of claude's at gears, and dies while it works on a third.
    const workerId = 'process 0';
    const claim = async () => (await client.rollouts.claimRollouts({ stageId, workerId })).claims[0]?.rollout;
    const [first, second] = [tokenOf(await claim()), tokenOf(await claim())];
    await client.rollouts.releaseRollout(second);
    await client.rollouts.startRollout(first);
    await client.rollouts.failRollout({ ...first, message: 'Factorio did not start' });
    const lost = tokenOf(await claim());
    expect(lost).toEqual({ ...second, attempt: 2 });

    // It is started again and creates nothing twice. The lost trial is failed, allowed one more attempt, and claimed
    // like the rest.
    expect((await sweep()).rollouts.every(({ existed }) => existed)).toBe(true);
    await client.rollouts.releaseRollout({ ...lost, message: 'process 0 died' });
    await client.rollouts.retryRollout(lost);
    for (let rollout = await claim(); rollout !== undefined; rollout = await claim()) {
      const token = tokenOf(rollout);
      await client.rollouts.startRollout(token);
      await client.rollouts.heartbeatRollouts({ leases: [token] });
      const success = rollout.labels.model === 'claude' || rollout.taskId === 'plates';
      await client.rollouts.completeRollout({
        ...token,
        result: { success, reward: success ? 16 : Number(rollout.number) },
        metrics: { tokens: 1000 },
      });
    }
    expect((await client.rollouts.claimRollouts({ stageId, workerId })).drained).toBe(true);
    const { attempts } = await client.rollouts.getRollout({ rolloutId: lost.rolloutId });
    expect(attempts.map(({ status }) => status)).toEqual([Status.FAILED, Status.FAILED, Status.COMPLETED]);

    const summed = async (...dimensions: { label?: string; key?: SummaryKey }[]) =>
      (await client.runs.summarize({ runIds: [runId], dimensions, passAt: [1, 3] })).summaries;
    const byModel = await summed({ label: 'model' });
    expect(
      byModel.map(({ values, completedCount, failedCount, cancelledCount, rewardMean, tokensPerSuccess }) => ({
        values,
        counts: [completedCount, failedCount, cancelledCount],
        rewardMean,
        tokensPerSuccess,
      })),
    ).toEqual([
      { values: ['claude'], counts: [2n, 1n, 3n], rewardMean: 16, tokensPerSuccess: 1000 },
      { values: ['gpt'], counts: [4n, 0n, 2n], rewardMean: 4.75, tokensPerSuccess: 4000 },
    ]);
    const [gears, plates] = await summed({ key: SummaryKey.TASK });
    expect([gears?.values, gears?.successCount, plates?.values, plates?.successCount]).toEqual([
      ['gears'],
      1n,
      ['plates'],
      2n,
    ]);
    expect(gears?.passAt.map(({ k }) => k)).toEqual([1, 3]);
    const trialsDone = await summed({ label: 'model' }, { key: SummaryKey.TASK }, { key: SummaryKey.NUMBER });
    expect(
      trialsDone.map(({ values, finished, successCount }) => [values.join(' '), finished, successCount]),
    ).toContainEqual(['claude gears 1', true, 1n]);
    expect(trialsDone.every(({ finished }) => finished)).toBe(true);

    // F-41, F-45: results of a model for the tasks that match a pattern, since a day ago.
    const since = timestampFromMs(Date.now() - 86_400_000);
    const { runs: recent } = await client.runs.listRuns({ createTimeFrom: since });
    expect(recent.map(({ run }) => run?.id)).toContain(runId);
    const catalogue = await client.rollouts.listTasks({});
    const alike = catalogue.tasks.map(({ id }) => id).filter((id) => /^pl/.test(id));
    expect(alike).toEqual(['plates']);
    const results = await client.rollouts.listRollouts({ runId, taskId: alike[0] ?? '', labels: { model: 'gpt' } });
    expect(results.rollouts.map(({ reward, success }) => [reward, success])).toContainEqual([16, true]);

    const { rollouts } = await client.rollouts.listRollouts({ stageId, statuses: [Status.CANCELLED] });
    expect(rollouts.map(({ taskId, labels, number }) => `${labels.model} ${taskId} ${number}`)).toEqual([
      'claude gears 2',
      'claude plates 1',
      'claude plates 2',
      'gpt plates 1',
      'gpt plates 2',
    ]);
  });
});

function tokenOf(rollout: Rollout | undefined): { rolloutId: string; attempt: number } {
  if (rollout === undefined) throw new Error('nothing was left to claim');
  return { rolloutId: rollout.id, attempt: rollout.attempt };
}

/** A factory that makes plates: enough of an environment to save, load and step it. */
class Factory {
  #plates = 0;

  save(): string {
    return JSON.stringify({ plates: this.#plates });
  }

  load(state: string): void {
    this.#plates = (JSON.parse(state) as { plates: number }).plates;
  }

  step(action: 'mine' | 'smelt'): [string, number, boolean, boolean, object] {
    const made = action === 'mine' ? 1 : 2;
    this.#plates += made;
    return [`${this.#plates} plates`, made, false, false, { action }];
  }
}

interface Checkpoint {
  readonly stepNumber: number;
  readonly agentCode: string;
  readonly environmentFeedback: string;
  readonly gameState: string;
}

/** The database client that FLE's document shows, implemented with Anabranch. */
class FleClient {
  readonly #client: AnabranchClient;

  constructor(client: AnabranchClient) {
    this.#client = client;
  }

  async createTrajectory(taskId: string, metadata: object): Promise<string> {
    const metadataJson = JSON.stringify(metadata);
    const { trajectory } = await this.#client.trajectories.createTrajectory({ taskId, metadataJson, root: {} });
    return trajectory?.id ?? '';
  }

  async saveCheckpoint(trajectoryId: string, checkpoint: Checkpoint): Promise<void> {
    const { gameState, ...step } = checkpoint;
    await this.#append(trajectoryId, step, [{ name: 'env', data: new TextEncoder().encode(gameState) }]);
  }

  async saveStep(trajectoryId: string, step: Omit<Checkpoint, 'gameState'>): Promise<void> {
    await this.#append(trajectoryId, step, []);
  }

  async getTrajectory(trajectoryId: string): Promise<Trajectory> {
    const { trajectory } = await this.#client.trajectories.getTrajectory({ trajectoryId });
    if (trajectory === undefined) throw new Error('an answer without a trajectory');
    return trajectory;
  }

  getAllTrajectories(): Promise<Trajectory[]> {
    return this.#list('');
  }

  getTaskTrajectories(taskId: string): Promise<Trajectory[]> {
    return this.#list(taskId);
  }

  /** In order, and without the root, which FLE did not have. */
  async getTrajectorySteps(trajectoryId: string): Promise<Step[]> {
    const steps: Step[] = [];
    for await (const { step } of readSteps(this.#client, { trajectoryId, startStepNumber: 1n })) steps.push(step);
    return steps;
  }

  async getCheckpoint(trajectoryId: string, stepNumber: number): Promise<Checkpoint> {
    const { step } = await this.#client.trajectories.getCheckpoint({ trajectoryId, stepNumber: BigInt(stepNumber) });
    return checkpointOf(step);
  }

  async getLatestCheckpoint(trajectoryId: string): Promise<Checkpoint> {
    const { step } = await this.#client.trajectories.getCheckpoint({ trajectoryId });
    return checkpointOf(step);
  }

  async countSteps(trajectoryId: string): Promise<number> {
    return Number((await this.getTrajectory(trajectoryId)).nextStepNumber) - 1;
  }

  async trajectoryExists(trajectoryId: string): Promise<boolean> {
    try {
      await this.getTrajectory(trajectoryId);
      return true;
    } catch (error) {
      if (ConnectError.from(error).code === Code.NotFound) return false;
      throw error;
    }
  }

  async deleteTrajectory(trajectoryId: string): Promise<void> {
    await this.#client.trajectories.deleteTrajectory({ trajectoryId });
  }

  async #append(
    trajectoryId: string,
    { stepNumber, agentCode, environmentFeedback }: Omit<Checkpoint, 'gameState'>,
    states: { name: string; data: Uint8Array<ArrayBuffer> }[],
  ): Promise<void> {
    await this.#client.trajectories.appendStep({
      trajectoryId,
      step: {
        stepNumber: BigInt(stepNumber),
        actions: [{ type: 'code', content: { text: agentCode } }],
        observations: [{ type: 'response', content: { text: environmentFeedback } }],
        states,
      },
    });
  }

  async #list(taskId: string): Promise<Trajectory[]> {
    const all: Trajectory[] = [];
    for (let pageToken: string | undefined = ''; pageToken !== undefined; ) {
      const page = await this.#client.trajectories.listTrajectories({ taskId, pageToken, pageSize: 2 });
      all.push(...page.trajectories);
      pageToken = page.nextPageToken === '' ? undefined : page.nextPageToken;
    }
    return all;
  }
}

function checkpointOf(step: Step | undefined): Checkpoint {
  return {
    stepNumber: Number(step?.stepNumber),
    agentCode: step?.actions[0]?.content?.text ?? '',
    environmentFeedback: step?.observations[0]?.content?.text ?? '',
    gameState: new TextDecoder().decode(step?.states[0]?.data),
  };
}
