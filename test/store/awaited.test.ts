import { expect, it } from 'vitest';
import type { AwaitedRows, ChangedRows } from '../../src/store/contract/change.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene, tokenOf } from './rollout_scene.ts';
import { statementsOf } from './statement_count.ts';

describeStore('what has changed of awaited rows', (on) => {
  const find = (awaited: Partial<AwaitedRows>): Promise<ChangedRows> =>
    on.store.findChanges({ trajectories: [], runs: [], queues: [], since: undefined, ...awaited });

  it('RD2: trajectories that have grown, are sealed or deleted, and no others', async () => {
    const scene = new RolloutScene(on.store);
    const [quiet, grown, sealed, deleted] = [
      await scene.createWith(['a']),
      await scene.createWith(['a']),
      await scene.createWith(['a']),
      await scene.createWith(['a']),
    ];
    const awaited = [quiet, grown, sealed, deleted].map(({ ref }) => ({ ref, end: 1n }));
    expect((await find({ trajectories: awaited })).trajectories).toEqual([]);
    await scene.append(grown, [wordStep(1n, 'b')]);
    await scene.seal(sealed);
    await scene.delete(deleted);
    const { trajectories } = await find({ trajectories: awaited });
    expect([...trajectories].sort()).toEqual([grown, sealed, deleted].map(({ ref }) => ref.key).sort());
  });

  it('M5: runs with a row that changed since the horizon, and values that set no mark', async () => {
    const scene = new RolloutScene(on.store);
    const { run, stage } = await scene.place();
    const other = await scene.makeRunWith(['a']);
    const awaited = { runs: [run.key, other.key] };
    let { horizon: since } = await find(awaited);
    const changes = async () => {
      const found = await find({ ...awaited, since });
      since = found.horizon;
      return new Map(found.runs.map((each) => [each.key, each]));
    };
    const before = await changes();
    expect([...before.values()].map(({ changed }) => changed)).toEqual([false, false]);
    await scene.queue(stage, 1);
    expect((await changes()).get(run.key)?.changed).toBe(true);
    const [claim] = await scene.claims({ stageId: stage.id });
    await scene.store.startRollout(scene.caller, tokenOf(claim!), { message: '', metadataJson: '', phase: undefined });
    const claimed = await changes();
    expect([claimed.get(run.key)?.changed, claimed.get(other.key)?.changed]).toEqual([true, false]);
    await scene.append(claim!.trajectory, [wordStep(0n, 'a'), wordStep(1n, 'b')]);
    await scene.store.updateExperiment(scene.namespace, other.experiment.id, { name: 'renamed' });
    const derived = await changes();
    for (const { key } of [run, other]) {
      expect(derived.get(key)).toMatchObject({ changed: false });
      expect(derived.get(key)?.derived).not.toBe(claimed.get(key)?.derived);
    }
    expect(await changes()).toEqual(derived);
  });

  it('M5: every run, without a horizon or after an era of horizons has ended', async () => {
    const scene = new RolloutScene(on.store);
    const { run } = await scene.place();
    for (const era of [undefined, 'another']) {
      const { horizon } = await find({});
      const { runs } = await find({ runs: [run.key], since: era === undefined ? undefined : { ...horizon, era } });
      expect(runs.map(({ key, changed }) => [key, changed])).toEqual([[run.key, true]]);
    }
  });

  it('Q2: namespaces that have PENDING rollouts in open stages', async () => {
    const [full, empty, paused] = [new RolloutScene(on.store), new RolloutScene(on.store), new RolloutScene(on.store)];
    for (const scene of [full, paused]) await scene.queue((await scene.place()).stage, 1);
    const { run } = await empty.place();
    expect(run.status).toBe('RUNNING');
    const [ofPaused] = await paused.runs();
    await paused.move(ofPaused!, 'pause');
    const queues = [full, empty, paused].map(({ namespace }) => namespace);
    expect((await find({ queues })).queues).toEqual([full.namespace]);
  });

  it('RD2: takes one statement for a thousand trajectories, and as many for one', async () => {
    const scene = new RolloutScene(on.store);
    const { ref } = await scene.createWith(['a']);
    const { run } = await scene.place();
    const many = Array.from({ length: 1000 }, () => ({ ref, end: 1n }));
    const since = (await find({})).horizon;
    for (const trajectories of [many, many.slice(0, 1)]) {
      const awaited = { trajectories, runs: [run.key], queues: [scene.namespace], since };
      expect(await statementsOf(on.engine, () => find(awaited))).toBe(1);
    }
  });
});
