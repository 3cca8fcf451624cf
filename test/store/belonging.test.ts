import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { StepCursor, StepFilter } from '../../src/store/contract/step.ts';
import type { TrajectoryFilter } from '../../src/store/contract/trajectory.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { refusalOf, wordOf } from './scene.ts';
import { dumpNamespace } from './sql.ts';

const ALL = { limit: 1000, after: undefined };
const NUMBER = { by: 'NUMBER', descending: false } as const;

describeStore('trajectories of runs and experiments', (on) => {
  const scene = () => new RunScene(on.store);
  const ids = async (here: RunScene, filter: TrajectoryFilter) =>
    (await here.store.listTrajectories(here.namespace, filter, ALL)).map(({ id }) => id);
  const words = async (here: RunScene, of: StepFilter['of'], more: Omit<StepFilter, 'of'> = {}) => {
    const page = { ...ALL, maxBytes: 1e6 };
    const { steps } = await here.store.listSteps(here.namespace, { of, ...more }, NUMBER, page, 'FULL');
    return steps.map(({ step }) => wordOf(step));
  };

  /**
   * An experiment with two runs (each with a main trajectory, one of them with a branch), a trajectory of the
   * experiment alone, and one that belongs to neither.
   */
  async function populate(here: RunScene) {
    const experiment = await here.experiment();
    const place = { experiment: { id: experiment.id } };
    const [one, two] = [await here.makeRunWith(['a0', 'a1'], place), await here.makeRunWith(['b0'], place)];
    const [mainOne, mainTwo] = [one.mainTrajectory?.id ?? '', two.mainTrajectory?.id ?? ''];
    const branch = await here.branch({ id: mainOne }, 0n);
    await here.appendWords(branch, ['c1']);
    const side = await here.createWith(['d0'], { runId: one.id });
    const loose = await here.createWith(['e0'], { experimentId: experiment.id });
    const nobodys = await here.createWith(['f0']);
    await here.makeRunWith(['g0']);
    return { experiment, one, two, mainOne, mainTwo, branch, side, loose, nobodys };
  }

  it('a trajectory belongs to a run and its experiment, to an experiment alone, or to neither; a branch belongs where its source does', async () => {
    const here = scene();
    const { experiment, one, branch, side, loose, nobodys, mainOne } = await populate(here);
    const ofRun = { runId: one.id, experimentId: experiment.id };
    for (const id of [mainOne, branch.id, side.id]) expect(await here.get(id)).toMatchObject(ofRun);
    expect(await here.get(loose.id)).toMatchObject({ runId: '', experimentId: experiment.id });
    expect(await here.get(nobodys.id)).toMatchObject({ runId: '', experimentId: '' });
    expect(await here.branch(loose, 0n)).toMatchObject({ runId: '', experimentId: experiment.id });
    expect(await here.branch(nobodys, 0n)).toMatchObject({ runId: '', experimentId: '' });
    expect(await here.create({ runId: one.id, experimentId: experiment.id })).toMatchObject(ofRun);
  });

  it('RD4: lists trajectories of a run and of an experiment, newest first', async () => {
    const here = scene();
    const { experiment, one, two, mainOne, mainTwo, branch, side, loose, nobodys } = await populate(here);
    expect(await ids(here, { runId: one.id })).toEqual([side.id, branch.id, mainOne]);
    expect(await ids(here, { runId: two.id })).toEqual([mainTwo]);
    const all = [loose.id, side.id, branch.id, mainTwo, mainOne];
    expect(await ids(here, { experimentId: experiment.id })).toEqual(all);
    expect(await ids(here, { experimentId: experiment.id, runId: one.id, rootsOnly: true })).toEqual([
      side.id,
      mainOne,
    ]);
    expect(await ids(here, { withoutRun: true })).toEqual([nobodys.id, loose.id]);
    expect(await ids(here, { withoutRun: true, experimentId: experiment.id })).toEqual([loose.id]);
    for (const filter of [{ runId: randomUUID() }, { experimentId: randomUUID() }, { runId: experiment.id }])
      expect(await ids(here, filter)).toEqual([]);
    expect(await here.store.listTrajectories('other', { runId: one.id }, ALL)).toEqual([]);
  });

  it('RD4: lists own steps of all trajectories of a run or an experiment, filtered and in pages', async () => {
    const here = scene();
    const { experiment, one, two, mainOne } = await populate(here);
    expect(await words(here, { runId: one.id })).toEqual(['a0', 'd0', 'a1', 'c1']);
    expect(await words(here, { runId: two.id })).toEqual(['b0']);
    expect(await words(here, { experimentId: experiment.id })).toEqual(['a0', 'b0', 'd0', 'e0', 'a1', 'c1']);
    for (const of of [{ runId: randomUUID() }, { experimentId: one.id }]) expect(await words(here, of)).toEqual([]);
    const main = await here.get(mainOne);
    await here.append(main, [wordStep(2n, 'end', { terminated: true, reward: 5 })]);
    expect(await words(here, { experimentId: experiment.id }, { terminalOnly: true, minReward: 4 })).toEqual(['end']);
    const paged: string[] = [];
    for (let after: StepCursor | undefined; ; ) {
      const { steps } = await here.store.listSteps(
        here.namespace,
        { of: { runId: one.id } },
        NUMBER,
        { limit: 1, after, maxBytes: 1e6 },
        'BASIC',
      );
      const [step] = steps;
      if (step === undefined) break;
      paged.push(`${step.owner.id === mainOne} ${step.step.stepNumber}`);
      const { stepNumber, reward, commitTime } = step.step;
      after = { key: step.owner.key, stepNumber, reward, commitTime };
    }
    expect(paged).toEqual(['true 0', 'false 0', 'true 1', 'false 1', 'true 2']);
    expect(
      await here.store.listSteps('other', { of: { runId: one.id } }, NUMBER, { ...ALL, maxBytes: 1e6 }, 'BASIC'),
    ).toEqual({ steps: [], isCut: false });
  });

  it('RD4: steps of a trajectory that was deleted, alone or with its run, are not listed', async () => {
    const here = scene();
    const { experiment, one, two, mainOne } = await populate(here);
    await here.store.deleteTrajectory(here.namespace, mainOne, 'KEEP_SHARED');
    expect(await words(here, { runId: one.id })).toEqual(['d0', 'c1']);
    await here.store.deleteRun(here.namespace, one.id, 'REFUSE');
    expect(await words(here, { runId: one.id })).toEqual([]);
    expect(await words(here, { experimentId: experiment.id })).toEqual(['b0', 'e0']);
    await here.store.deleteExperiment(here.namespace, experiment.id, 'REFUSE');
    expect(await words(here, { experimentId: experiment.id })).toEqual([]);
    expect(await ids(here, { runId: two.id })).toEqual([]);
    while (await here.store.purgeDeleted(500));
    expect(await words(here, { experimentId: experiment.id })).toEqual([]);
  });

  it('the run and the experiment of a new trajectory must exist, and the experiment must be that of the run', async () => {
    const here = scene();
    const { experiment, one } = await populate(here);
    const other = await here.experiment();
    const before = await dumpNamespace(on.sql, here.namespace);
    const missing = randomUUID();
    const refused = async (fields: object) => refusalOf(here.create(fields));
    expect(await refused({ runId: missing })).toMatchObject({ reason: 'RUN_NOT_FOUND', metadata: { run: missing } });
    expect(await refused({ experimentId: missing })).toMatchObject({
      reason: 'EXPERIMENT_NOT_FOUND',
      metadata: { experiment: missing },
    });
    expect(await refused({ runId: one.id, experimentId: other.id })).toMatchObject({
      reason: 'INVALID_REQUEST',
      violations: [{ field: 'experiment_id' }],
    });
    const elsewhere = new RunScene(on.store);
    expect((await refusalOf(elsewhere.create({ runId: one.id }))).reason).toBe('RUN_NOT_FOUND');
    expect((await refusalOf(elsewhere.create({ experimentId: experiment.id }))).reason).toBe('EXPERIMENT_NOT_FOUND');
    expect(await dumpNamespace(on.sql, here.namespace)).toBe(before);
  });
});
