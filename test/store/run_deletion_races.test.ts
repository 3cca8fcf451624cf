import { expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { dose } from '../support/dose.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore, openOn } from './on_store.ts';
import { newMain, newStage, RunScene, SILENT } from './run_scene.ts';
import { countRows } from './sql.ts';

describeStore('deletion of runs concurrent with other work', (on) => {
  const scene = (store: Store = on.store, namespace?: string) => new RunScene(store, namespace);
  type Settled = PromiseSettledResult<unknown>;
  const outcome = (result: Settled) =>
    result.status === 'fulfilled' ? 'done' : String((result.reason as { reason?: string }).reason ?? result.reason);
  const left = async (namespace: string) => {
    await collectUnused(on.store);
    return Object.entries(await countRows(on.sql, namespace)).filter(([, count]) => count > 0);
  };
  async function purgeAll(store: Store = on.store): Promise<void> {
    while (await store.purgeDeleted(50));
  }

  it('B4: every write to a run that is deleted and purged meanwhile commits first or is refused, and leaves no row', async () => {
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    try {
      const seen = new Set<string>();
      for (let round = 0; round < dose(4, 12); round += 1) {
        const here = scene();
        const there = scene(other, here.namespace);
        const experiment = await here.experiment();
        const run = await here.makeRunWith(['a', 'b'], { experiment: { id: experiment.id } });
        const trajectory = await here.get(run.mainTrajectory?.id ?? '');
        const stage = await here.stage(run);
        await here.store.logMetrics(here.namespace, run.id, [
          { name: 'm', metricStep: 0n, value: 0, stageId: undefined },
        ]);
        const state = newState(`${round}`);
        const point = (name: string) => ({ name, metricStep: 1n, value: 1, stageId: stage.id });
        const writers = (who: RunScene): (() => Promise<unknown>)[] => [
          () => who.append(trajectory, [makeStep(2n, { states: [stateRef(state)] })], { states: [state] }),
          () => who.open(trajectory, who.caller.actor),
          () => who.create({ runId: run.id, root: wordStep(0n, 'c') }),
          () => who.create({ experimentId: experiment.id }),
          () => who.branch(trajectory, 1n),
          () => who.store.setTag(who.namespace, trajectory.id, 't', 0n, undefined),
          () => who.store.getOrCreateStage(who.caller, newStage(run.id, { number: 5n })),
          () => who.store.updateStage(who.namespace, stage.id, { phase: 'x' }),
          () => who.store.moveStage(who.caller, stage.id, 'start', SILENT),
          () => who.store.logMetrics(who.namespace, run.id, [point('m')]),
          () => who.store.logMetrics(who.namespace, run.id, [point(`new ${round}`)]),
          () => who.move(run, 'start'),
          () => who.store.heartbeatRun(who.namespace, run.id),
          () => who.store.updateRun(who.namespace, run.id, { phase: 'y' }),
        ];
        const deleting = async () => {
          await (round % 2 === 0
            ? here.store.deleteExperiment(here.namespace, experiment.id, 'CASCADE')
            : here.store.deleteRun(here.namespace, run.id, 'CASCADE'));
          await purgeAll();
        };
        const results = await Promise.allSettled([
          ...writers(there)
            .slice(0, 7)
            .map((write) => write()),
          deleting(),
          ...writers(here).map((write) => write()),
          ...writers(there)
            .slice(7)
            .map((write) => write()),
        ]);
        for (const each of results) seen.add(outcome(each));
        await purgeAll();
        if (round % 2 === 1) await here.store.deleteExperiment(here.namespace, experiment.id, 'REFUSE');
        await purgeAll();
        expect(await left(here.namespace)).toEqual([]);
      }
      const allowed = [
        'done',
        'RUN_NOT_FOUND',
        'EXPERIMENT_NOT_FOUND',
        'STAGE_NOT_FOUND',
        'TRAJECTORY_NOT_FOUND',
        'STEP_CONFLICT',
        'WRITER_FENCED',
      ];
      for (const each of seen) expect(allowed).toContain(each);
    } finally {
      if (other !== on.store) await other.close();
    }
  });

  it('B4: a branch of a run that is deleted meanwhile is complete, or is refused', async () => {
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    try {
      for (let round = 0; round < dose(6, 20); round += 1) {
        const here = scene();
        const there = scene(other, here.namespace);
        const root = await here.makeRunWith(['a', 'b', 'c']);
        const cascade = round % 2 === 0;
        const [deleted, ...branched] = (await Promise.allSettled([
          here.store.deleteRun(here.namespace, root.id, cascade ? 'CASCADE' : 'REFUSE'),
          here.branchOff(root, 1n),
          there.branchOff(root, 2n),
        ])) as [Settled, ...Settled[]];
        expect(['done', ...(cascade ? [] : ['HAS_BRANCHES'])]).toContain(outcome(deleted));
        for (const each of branched) expect(['done', 'RUN_NOT_FOUND', 'NO_MAIN_TRAJECTORY']).toContain(outcome(each));
        await purgeAll();
        const runs = await here.runs();
        if (outcome(deleted) === 'done') expect(runs).toEqual([]);
        else expect(runs.length).toBe(1 + branched.filter((each) => outcome(each) === 'done').length);
        for (const { id } of runs) {
          const { mainTrajectory } = await here.run(id);
          const words = await here.words({ id: mainTrajectory?.id ?? '' });
          expect(words.length).toBe(Number(mainTrajectory?.nextStepNumber));
        }
        if (outcome(deleted) === 'done')
          expect(await countRows(on.sql, here.namespace)).toMatchObject({ trajectories: 0, steps: 0, runs: 0 });
      }
    } finally {
      if (other !== on.store) await other.close();
    }
  });

  it('B4: a run created while its experiment is deleted is complete in an experiment of that name, or is refused', async () => {
    for (let round = 0; round < dose(3, 10); round += 1) {
      const here = scene();
      const first = await here.makeRun();
      const results = await Promise.allSettled([
        ...Array.from({ length: 3 }, () => here.make({ mainTrajectory: newMain({ root: wordStep(0n, 'a') }) })),
        here.store.deleteExperiment(here.namespace, first.experiment.id, 'REFUSE'),
        ...Array.from({ length: 3 }, () => here.make({ mainTrajectory: newMain({ root: wordStep(0n, 'a') }) })),
      ]);
      expect(results.map(outcome)).toEqual(results.map(() => 'done'));
      await purgeAll();
      const runs = await here.runs();
      const experiments = await here.store.listExperiments(here.namespace, {}, { limit: 9, after: undefined }, 'BASIC');
      expect(experiments.length).toBeLessThanOrEqual(1);
      expect(await countRows(on.sql, here.namespace)).toMatchObject({
        runs: runs.length,
        trajectories: runs.length,
        steps: runs.length,
        experiments: experiments.length,
      });
    }
  });

  it('B2, B4: concurrent deletions of trajectories, runs and experiments of one tree all end, and leave no rows', async () => {
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    try {
      for (let round = 0; round < dose(4, 8); round += 1) {
        const here = scene();
        const root = await here.makeRunWith(['a', 'b', 'c']);
        const branches = await Promise.all([0n, 1n, 2n].map((at) => here.branchOff(root, at)));
        const leaves = await Promise.all(branches.map(({ run }) => here.branchOff(run, 0n)));
        const calls = [
          () => here.store.deleteTrajectory(here.namespace, root.mainTrajectory?.id ?? '', 'KEEP_SHARED'),
          ...leaves.map(
            ({ run }) =>
              () =>
                here.store.deleteRun(here.namespace, run.id, 'REFUSE'),
          ),
          ...branches.map(
            ({ run }) =>
              () =>
                other.deleteRun(here.namespace, run.id, 'CASCADE'),
          ),
          () => purgeAll(other),
          () => purgeAll(),
        ];
        const results = await Promise.allSettled(calls.map((call) => call()));
        for (const each of results) expect(['done', 'RUN_NOT_FOUND']).toContain(outcome(each));
        await on.store.deleteExperiment(here.namespace, root.experiment.id, 'REFUSE');
        await Promise.all([purgeAll(other), purgeAll()]);
        await purgeAll();
        expect(await left(here.namespace)).toEqual([]);
      }
    } finally {
      if (other !== on.store) await other.close();
    }
  });

  it('B4: of many concurrent deletions of one run, one deletes it', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a']);
    const results = await Promise.allSettled(
      Array.from({ length: 6 }, () => here.store.deleteRun(here.namespace, run.id, 'REFUSE')),
    );
    expect(results.map(outcome).sort()).toEqual([...Array(5).fill('RUN_NOT_FOUND'), 'done'].sort());
  });
});
