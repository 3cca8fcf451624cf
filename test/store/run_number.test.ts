import { expect, it } from 'vitest';
import { makeStep, sha256 } from '../support/steps.ts';
import { describeStore, openOn } from './on_store.ts';
import { newMain, newRun, RunScene } from './run_scene.ts';
import { refusalOf } from './scene.ts';

const RACERS = 20;

describeStore('numbers and names of runs', (on) => {
  const scene = () => new RunScene(on.store);

  it('L2: runs, including branches, are numbered 1, 2, 3, … in each experiment; the default name is run-1, run-2, …', async () => {
    const here = scene();
    const { id } = await here.experiment();
    const root = await here.makeRunWith(['a']);
    await here.makeRun({ experiment: { id } });
    await here.branchOff(root, 0n);
    await here.makeRun({ name: 'mine' });
    await here.makeRun();
    const runs = await here.runs({ experiment: { name: 'default' } });
    expect(runs.map(({ number, name }) => `${number} ${name}`)).toEqual(['4 run-4', '3 mine', '2 run-2', '1 run-1']);
    expect(await here.runNames({ experiment: { id } })).toEqual(['run-1']);
  });

  it('a default name that is in use gets a suffix with a counter, also if that name has a counter', async () => {
    const here = scene();
    for (const name of ['run-3', 'run-3-2', 'run-3-4']) await here.makeRun({ name, experiment: undefined });
    const root = await here.makeRunWith(['a']);
    expect(root.name).toBe('run-4');
    await here.makeRun({ name: 'run-6' });
    expect((await here.branchOff(root, 0n)).run.name).toBe('run-6-2');
    await here.store.updateRun(here.namespace, root.id, { name: 'run-7' });
    expect(await here.makeRun()).toMatchObject({ name: 'run-7-2', number: 7n });
    expect(await here.makeRun({ name: 'run-4' })).toMatchObject({ number: 8n });
  });

  it('twenty racers get twenty numbers without a gap and twenty names, also if the experiment does not exist yet', async () => {
    const here = scene();
    const made = await Promise.all(Array.from({ length: RACERS }, () => here.makeRun({ mainTrajectory: newMain() })));
    const wanted = Array.from({ length: RACERS }, (_, i) => BigInt(i + 1));
    expect(made.map(({ number }) => number).sort((a, b) => Number(a - b))).toEqual(wanted);
    expect(made.map(({ number, name }) => name === `run-${number}`)).not.toContain(false);
    // Numbers are in creation order.
    expect((await here.runs()).map(({ number }) => number)).toEqual(wanted.toReversed());
    const experiments = await here.store.listExperiments(here.namespace, {}, { limit: 9, after: undefined }, 'BASIC');
    expect(experiments).toMatchObject([{ name: 'default', runCount: 20n }]);
  });

  it('twenty racers that branch one run get twenty numbers, concurrent with others that create runs', async () => {
    const here = scene();
    const root = await here.makeRunWith(['a', 'b']);
    const made = await Promise.all(
      Array.from({ length: RACERS }, (_, i) => (i % 2 === 0 ? here.branchOff(root, 1n) : here.make())),
    );
    const numbers = made.map(({ run }) => run.number).sort((a, b) => Number(a - b));
    expect(numbers).toEqual(Array.from({ length: RACERS }, (_, i) => BigInt(i + 2)));
  });

  it('of twenty racers for one name one gets it, the others get an error with its run; none uses up a number', async () => {
    const here = scene();
    const root = await here.makeRunWith(['a']);
    const results = await Promise.allSettled(
      Array.from({ length: RACERS }, (_, i) =>
        i % 2 === 0 ? here.make({ name: 'one' }) : here.branchOff(root, 0n, { name: 'one' }),
      ),
    );
    const won = results.flatMap((each) => (each.status === 'fulfilled' ? [each.value.run] : []));
    expect(won).toHaveLength(1);
    for (const each of results)
      if (each.status === 'rejected') {
        expect(each.reason).toMatchObject({ reason: 'RUN_EXISTS', metadata: { run: 'one', run_id: won[0]?.id } });
      }
    expect(await here.makeRun()).toMatchObject({ number: 3n });
  });

  it('of twenty racers that rename to one name one gets it, the others get an error with its run', async () => {
    const here = scene();
    const runs = await Promise.all(Array.from({ length: RACERS }, () => here.makeRun()));
    const results = await Promise.allSettled(
      runs.map(({ id }) => here.store.updateRun(here.namespace, id, { name: 'one' })),
    );
    const won = results.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []));
    expect(won).toHaveLength(1);
    for (const each of results)
      if (each.status === 'rejected')
        expect(each.reason).toMatchObject({ reason: 'RUN_EXISTS', metadata: { run: 'one', run_id: won[0]?.id } });
  });

  it('of twenty racers for one id one gets it', async () => {
    const here = scene();
    const { id } = newRun();
    const results = await Promise.allSettled(Array.from({ length: RACERS }, () => here.make({ id })));
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const each of results)
      if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'RUN_EXISTS' });
    expect(await here.runNames()).toEqual(['run-1']);
  });

  it('a request that is refused late leaves no gap', async () => {
    const here = scene();
    await here.makeRun();
    const digest = sha256('nowhere');
    const root = makeStep(0n, { states: [{ name: 'env', digest, mediaType: '', size: 0 }] });
    expect((await refusalOf(here.make({ mainTrajectory: newMain({ root }) }))).reason).toBe('STATE_NOT_FOUND');
    expect(await here.makeRun()).toMatchObject({ number: 2n, name: 'run-2' });
  });

  it('B4: a deleted run frees its name and keeps its number; its id can be used again after its row is purged', async () => {
    const here = scene();
    const [one, two] = [await here.makeRun({ name: 'one' }), await here.makeRun({ name: 'two' })];
    for (const { id } of [one, two]) await here.store.deleteRun(here.namespace, id, 'REFUSE');
    expect((await refusalOf(here.make({ id: one.id }))).reason).toBe('RUN_EXISTS');
    const again = await here.make({ name: 'one', returnExisting: true, configJson: '{"a":1}' });
    expect(again).toMatchObject({ created: true, run: { name: 'one', number: 3n } });
    expect(await here.runs()).toHaveLength(1);
  });

  it('twenty racers over two instances get twenty numbers on Postgres; SQLite lets one process write', async () => {
    if (on.engine === 'sqlite') {
      await expect(openOn(on.database)).rejects.toThrow('another');
      return;
    }
    const other = await openOn(on.database);
    try {
      const here = scene();
      const there = new RunScene(other, here.namespace);
      const made = await Promise.all(
        Array.from({ length: RACERS }, (_, i) => (i % 2 === 0 ? here : there).makeRun({ mainTrajectory: newMain() })),
      );
      const numbers = made.map(({ number }) => number).sort((a, b) => Number(a - b));
      expect(numbers).toEqual(Array.from({ length: RACERS }, (_, i) => BigInt(i + 1)));
      const named = await Promise.allSettled(
        Array.from({ length: RACERS }, (_, i) => (i % 2 === 0 ? here : there).makeRun({ name: 'one' })),
      );
      expect(named.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
      const same = await Promise.all(
        Array.from({ length: RACERS }, (_, i) =>
          (i % 2 === 0 ? here : there).make({ name: 'two', returnExisting: true }),
        ),
      );
      expect(new Set(same.map(({ run }) => run.id)).size).toBe(1);
    } finally {
      await other.close();
    }
  });
});
