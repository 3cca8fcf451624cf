import { expect, it } from 'vitest';
import type { AnabranchError } from '../../src/domain/errors.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { exported, imported, onTarget } from './archived.ts';
import { furnishRollouts } from './furnish_rollouts.ts';
import { describeStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { expectVerified } from './verified.ts';

const config = (lr: number) => JSON.stringify({ lr, seed: 1 });

describeStore('an archive of another server', (on) => {
  /** A run with rollouts, in the experiment that the server makes itself. */
  async function furnished(store: Store, namespace: string | undefined, name: string, lr = 0.1) {
    const scene = new RunScene(store, namespace);
    const run = await scene.makeRunWith(['a', 'b'], { status: 'RUNNING', name, configJson: config(lr) });
    await furnishRollouts(scene, run);
    return { scene, run };
  }

  const conflictOf = (work: Promise<unknown>) =>
    work.then(
      () => undefined,
      ({ reason, message }: AnabranchError) => ({ reason, message }),
    );

  it('V6: its runs join the experiments of the same name, and keep their ids and what they contain', async () => {
    const { scene, run } = await furnished(on.store, undefined, 'first');
    const parts = await exported(on.store, scene.namespace, { kind: 'run', id: run.id });
    await onTarget(on.engine, async (store) => {
      const { scene: there, run: own } = await furnished(store, scene.namespace, 'second');
      const progress = await imported(store, scene.namespace, parts);
      expect(progress).toMatchObject({ runs: 1n, presentTrajectories: 0n });
      const found = await there.run(run.id);
      expect(found).toMatchObject({ name: 'first', experiment: own.experiment, configJson: run.configJson });
      expect([own.number, run.number, found.number]).toEqual([1n, 1n, 2n]);
      const main = await there.get(run.mainTrajectory!.id);
      expect([main.runId, main.experimentId]).toEqual([run.id, own.experiment.id]);
      expect(await there.history('RUN', run)).toEqual(await scene.history('RUN', run));
      await expectVerified(store);
      const again = await imported(store, scene.namespace, parts);
      const { presentTrajectories, identicalTrajectories } = again;
      expect([again.runs, presentTrajectories, identicalTrajectories]).toEqual([
        0n,
        progress.trajectories,
        progress.trajectories,
      ]);
      expect((await there.makeRun()).number).toBe(3n);
      expect((await there.makeRun({ name: 'first', returnExisting: true })).id).toBe(run.id);
    });
  });

  it('V6: another run of the same name is a conflict, which lists what differs', async () => {
    const { scene, run } = await furnished(on.store, undefined, 'sweep');
    const parts = await exported(on.store, scene.namespace);
    await onTarget(on.engine, async (store) => {
      const { scene: there, run: own } = await furnished(store, scene.namespace, 'sweep', 0.2);
      const { reason, message } = (await conflictOf(imported(store, scene.namespace, parts)))!;
      expect(reason).toBe('IMPORT_CONFLICT');
      expect(message).toContain(
        'The run "sweep" of experiment "default" cannot be imported: another run of this name is stored.',
      );
      expect(message).toContain(`differ in id (${own.id}, ${run.id}), config_json/lr (0.2, 0.1), start_time (`);
      expect(message).toContain('Rename one of them');
      expect(await there.runNames()).toEqual(['sweep']);
      await store.updateRun(scene.namespace, own.id, { name: 'other' });
      await imported(store, scene.namespace, parts);
      expect(await there.runNames()).toEqual(['sweep', 'other']);
    });
  });

  it.each([
    ['task', { description: 'another' }, 'The task furnished cannot be imported'],
    ['validator', { validators: { query: 'another' } }, 'The validator "state" of task "furnished" cannot be imported'],
  ])('V6: a %s of the same name and another definition is a conflict', async (_, change, expected) => {
    const { scene, run } = await furnished(on.store, undefined, 'one');
    const parts = await exported(on.store, scene.namespace, { kind: 'run', id: run.id });
    await onTarget(on.engine, async (store) => {
      await furnished(store, scene.namespace, 'two');
      const { validators, ...fields } = change as { validators?: { query: string } };
      const types = validators && new Map([['state', { newId: crypto.randomUUID(), ...validators }]]);
      await store.upsertTasks(scene.namespace, [{ id: 'furnished', ...fields, ...(types && { validators: types }) }]);
      const { reason, message } = (await conflictOf(imported(store, scene.namespace, parts)))!;
      expect([reason, message]).toEqual(['IMPORT_CONFLICT', expect.stringContaining(expected)]);
      expect(message).toMatch(/differ in .*(description|query) \(another, /);
    });
  });
});
