import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Run } from '../../gen/es/anabranch/v1/run_pb.js';
import { SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, openWriter, readSteps, reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { type Served, startServed } from './served.ts';

/** The branching example in simulator-state-db's document, the calls of its managers, and its endpoints, made here. */
describe.each(ENGINES)('SSDB, on %s:', (engine) => {
  let served: Served;
  let client: AnabranchClient;
  let simulationId: string;
  let mainRun: Run;
  let branch: Run;
  beforeAll(async () => {
    served = await startServed(engine);
    client = served.client;
  });
  afterAll(() => served?.stop());

  it('S-03, S-09: runs to step 200 with one learning rate, and branches there with another', async () => {
    const { experiment } = await client.runs.createExperiment({
      name: 'CartPole sweep',
      environmentName: 'CartPole-v1',
      agentType: 'PPO',
      defaultConfigJson: '{"gamma": 0.99, "net": {"hidden": [64, 64]}}',
      tags: ['cartpole'],
    });
    simulationId = experiment?.id ?? '';
    mainRun = runOf(
      await client.runs.createRun({
        experimentId: simulationId,
        name: 'main',
        configJson: '{"lr": 0.001}',
        mainTrajectory: { root: { observations: [{ content: { json: '[0]' } }] } },
        initialStatus: Status.RUNNING,
      }),
    );
    await runUntilStep(mainRun, 200);

    branch = runOf(
      await client.runs.branchRun({
        runId: mainRun.id,
        stepNumber: 200n,
        name: 'high-lr-experiment',
        configOverridesJson: '{"lr": 0.01}',
        removedConfigPaths: ['/net/hidden'],
      }),
    );
    expect(branch).toMatchObject({ parentId: mainRun.id, branchPoint: 200n, nextStepNumber: 201n });
    expect(branch.status).toBe(Status.RUNNING);
    expect(branch.description).toBe('Branched from main at step 200');
    expect(JSON.parse(branch.configJson)).toEqual({ gamma: 0.99, net: {}, lr: 0.01 });
  });

  it('S-07, K-S6: both continue from there, and share the steps before', async () => {
    await Promise.all([runUntilStep(mainRun, 300), runUntilStep(branch, 300)]);
    const [one, other] = await Promise.all([valuesOf(mainRun), valuesOf(branch)]);
    expect([one.length, other.length]).toEqual([301, 301]);
    expect(other.slice(0, 201)).toEqual(one.slice(0, 201));
    expect([one[300], other[300]]).toEqual([0.3, 1.2]);
  });

  it('S-04, S-35, S-37, S-38: compares them, shows their tree, and the origin of each step', async () => {
    const { comparisons } = await client.runs.compareRuns({ runIds: [mainRun.id, branch.id] });
    expect(comparisons[0]?.trajectories).toMatchObject({ sharedSteps: 201n, firstDifference: { stepNumber: 201n } });
    expect(comparisons[0]?.configDifferences).toMatchObject([
      { path: '/lr', valueJson: '0.001', otherValueJson: '0.01' },
      { path: '/net/hidden', valueJson: '[64,64]', otherValueJson: '' },
    ]);

    const { runs } = await client.runs.getRunTree({ runId: branch.id });
    expect(runs.map(({ name, parentId, branchPoint }) => [name, parentId, branchPoint])).toEqual([
      ['main', '', undefined],
      ['high-lr-experiment', mainRun.id, 200n],
    ]);
    const { runs: ofSimulation } = await client.runs.getRunTree({ experimentId: simulationId });
    expect(ofSimulation).toEqual(runs);
    const { segments } = await client.trajectories.getLineage({ trajectoryId: branch.mainTrajectoryId });
    expect(segments.map(({ startStepNumber, endStepNumber }) => [startStepNumber, endStepNumber])).toEqual([
      [0n, 201n],
      [201n, 301n],
    ]);
    const { nodes } = await client.trajectories.getTree({ trajectoryId: mainRun.mainTrajectoryId });
    expect(nodes.map(({ trajectory }) => trajectory?.runId)).toEqual([mainRun.id, branch.id]);
  });

  it('S-33, S-36: adds a state, gets one, and finds children and terminal states', async () => {
    const small = runOf(await client.runs.createRun({ experimentId: simulationId, mainTrajectory: { root: {} } }));
    const trajectoryId = small.mainTrajectoryId;
    await client.trajectories.appendStep({
      trajectoryId,
      step: { stepNumber: 1n, actions: [{ content: { json: '1' } }], reward: 1, truncated: true },
    });
    const { step } = await client.trajectories.getStep({ trajectoryId, stepNumber: 1n });
    expect(step?.actions[0]?.content?.json).toBe('1');

    const children = await client.runs.listRuns({ parentId: mainRun.id });
    expect(children.runs.map(({ run }) => run?.id)).toEqual([branch.id]);
    const { steps } = await client.trajectories.listSteps({ experimentId: simulationId, terminalOnly: true });
    expect(steps.map((each) => [each.trajectoryId, each.step?.stepNumber])).toEqual([[trajectoryId, 1n]]);
  });

  it('S-13, S-34: pauses, resumes, completes with a reward of any form, and fails', async () => {
    const runId = branch.id;
    expect(runOf(await client.runs.pauseRun({ runId })).status).toBe(Status.PAUSED);
    expect(runOf(await client.runs.resumeRun({ runId })).status).toBe(Status.RUNNING);
    const done = runOf(await client.runs.completeRun({ runId, resultJson: '{"total_reward": [1, 2]}' }));
    expect(done).toMatchObject({ status: Status.COMPLETED, resultJson: '{"total_reward": [1, 2]}' });
    expect(done.rewardSum).toBeCloseTo(1.2);
    expect(await trajectoryOf(branch)).toMatchObject({ status: Status.COMPLETED });
    expect(runOf(await client.runs.failRun({ runId: mainRun.id, message: 'fell over' })).status).toBe(Status.FAILED);
    expect(await trajectoryOf(mainRun)).toMatchObject({ status: Status.FAILED, statusMessage: 'fell over' });
  });

  it('S-13, S-34: a run that is reopened continues in a branch of its sealed trajectory', async () => {
    const runId = mainRun.id;
    const { mainTrajectoryId } = await client.runs.reopenRun({ runId });
    const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId: mainTrajectoryId });
    expect(trajectory).toMatchObject({ parentId: mainRun.mainTrajectoryId, branchPoint: 300n, status: Status.RUNNING });
    await client.trajectories.appendStep({ trajectoryId: mainTrajectoryId, step: { stepNumber: 301n, reward: 0.7 } });
    expect(runOf(await client.runs.failRun({ runId, message: 'fell over again' })).nextStepNumber).toBe(302n);
  });

  it('S-04: summarises the runs of a simulation, each by its first trajectory', async () => {
    const { summaries } = await client.runs.summarize({
      experimentId: simulationId,
      dimensions: [{ key: SummaryKey.EXPERIMENT }],
    });
    expect(summaries).toMatchObject([
      { values: [simulationId], rolloutCount: 0n, trajectoryCount: 2n, finalRewardMax: 1 },
    ]);
    expect(summaries[0]?.finalRewardMin).toBeCloseTo(0.3);
  });

  it('S-15: returns what the endpoints of SSDB returned', async () => {
    expect((await fetch(`${served.url}/healthz`)).status).toBe(200);
    const { experiments } = await client.runs.listExperiments({ tags: ['cartpole'] });
    expect(experiments.map(({ name, runCount }) => [name, runCount])).toEqual([['CartPole sweep', 3n]]);
    const { runs } = await client.runs.listRuns({ experimentId: simulationId });
    expect(runs.map(({ run }) => run?.name)).toEqual(['run-3', 'high-lr-experiment', 'main']);
  });

  it('K-S1: refuses a branch point that is not on the path', async () => {
    const refused = await client.runs
      .branchRun({ runId: mainRun.id, stepNumber: 302n })
      .catch((error: unknown) => error);
    expect(reasonOf(refused)).toBe('BRANCH_POINT_BEYOND_END');
  });

  it('K-S3, K-S4: deletes no branch silently, and a simulation completely', async () => {
    const refused = await client.runs.deleteRun({ runId: mainRun.id }).catch((error: unknown) => error);
    expect(reasonOf(refused)).toBe('HAS_BRANCHES');
    const deleted = await client.runs.deleteExperiment({ experimentId: simulationId });
    expect(deleted).toMatchObject({ deletedRuns: 3n, deletedTrajectories: 4n });
    expect((await client.trajectories.listTrajectories({})).trajectories).toEqual([]);
  });

  async function trajectoryOf({ mainTrajectoryId: trajectoryId }: Run) {
    return (await client.trajectories.getTrajectory({ trajectoryId })).trajectory;
  }

  /** A value that grows by ten times the learning rate at each step; the growth is the reward. */
  async function runUntilStep(run: Run, end: number): Promise<void> {
    const { lr } = JSON.parse(run.configJson) as { lr: number };
    const { step } = await client.trajectories
      .getCheckpoint({ trajectoryId: run.mainTrajectoryId })
      .catch(() => ({ step: undefined }));
    let value = step === undefined ? 0 : Number(new TextDecoder().decode(step.states[0]?.data));
    await using writer = await openWriter(client, { trajectoryId: run.mainTrajectoryId });
    while (writer.nextStepNumber <= BigInt(end)) {
      value = Math.round((value + lr) * 1e6) / 1e6;
      void writer.append({
        actions: [{ content: { json: '1' } }],
        observations: [{ content: { json: `[${value}]` } }],
        reward: lr,
        states: { env: new TextEncoder().encode(`${value}`) },
      });
    }
  }

  async function valuesOf(run: Run): Promise<number[]> {
    const values: number[] = [];
    for await (const { step } of readSteps(client, { trajectoryId: run.mainTrajectoryId }))
      values.push((JSON.parse(step.observations[0]?.content?.json ?? '') as number[])[0] ?? Number.NaN);
    return values;
  }
});

function runOf({ run }: { readonly run?: Run | undefined }): Run {
  if (run === undefined) throw new Error('an answer without a run');
  return run;
}
