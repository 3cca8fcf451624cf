import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { NewExperiment } from '../../src/store/contract/experiment.ts';
import { sha256, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { refusalOf } from './scene.ts';

const digestOf = (content: string) => sha256(content);

function experiment(name: string, fields: Partial<NewExperiment> = {}): NewExperiment {
  return {
    id: randomUUID(),
    name,
    description: '',
    environmentName: '',
    environmentConfigJson: '',
    agentType: '',
    agentConfigJson: '',
    defaultConfigJson: '',
    maxSteps: undefined,
    seed: undefined,
    tags: [],
    metadataJson: '',
    returnExisting: true,
    ...fields,
  };
}

describeStore('CreateTrajectory with RETURN_EXISTING', (on) => {
  it('ID2: returns the trajectory that the same request created, as it is', async () => {
    const scene = on.scene();
    const same = () => ({ id, createDigest: digestOf('one'), returnExisting: true, uid: randomUUID() });
    const id = randomUUID();
    const made = await scene.create({ ...same(), root: wordStep(0n, 'a') });
    await scene.appendWords(made, ['b']);
    const key = { rpc: 'CreateTrajectory', requestId: 'late', requestDigest: 'd' };
    for (const used of [undefined, key, key]) {
      expect(await scene.create(same(), used)).toMatchObject({ id, uid: made.uid, nextStepNumber: 2n });
    }
    expect((await refusalOf(scene.create({ ...same(), returnExisting: false }))).reason).toBe('TRAJECTORY_EXISTS');
  });

  it('ID2: another request, or none that is known, is CONFIG_MISMATCH; a deleted trajectory is TRAJECTORY_EXISTS', async () => {
    const scene = on.scene();
    const [known, unknown] = [await scene.create({ createDigest: digestOf('one') }), await scene.create()];
    for (const { id } of [known, unknown]) {
      const call = scene.create({ id, createDigest: digestOf('other'), returnExisting: true });
      expect(await refusalOf(call)).toMatchObject({ reason: 'CONFIG_MISMATCH', metadata: { trajectory_id: id } });
    }
    await scene.appendWords(known, ['a']);
    await scene.branch(known, 0n);
    await scene.delete(known, 'KEEP_SHARED');
    const again = { id: known.id, createDigest: digestOf('one'), returnExisting: true };
    expect((await refusalOf(scene.create(again))).reason).toBe('TRAJECTORY_EXISTS');
  });

  it('ID2: of many concurrent calls, one creates the trajectory, and all return it', async () => {
    const scene = on.scene();
    for (let round = 0; round < 10; round += 1) {
      const id = randomUUID();
      const call = () => scene.create({ id, uid: randomUUID(), createDigest: digestOf('one'), returnExisting: true });
      const made = await Promise.all(Array.from({ length: 8 }, call));
      expect(new Set(made.map(({ uid }) => uid)).size).toBe(1);
    }
  });
});

describeStore('CreateExperiment with RETURN_EXISTING', (on) => {
  it('ID2: returns the experiment with the name as it is, whatever else the request has', async () => {
    const { store, caller } = on.scene();
    const made = await store.createExperiment(caller, experiment('a', { description: 'first' }));
    expect(made.description).toBe('first');
    expect(await store.createExperiment(caller, experiment('a', { description: 'second' }))).toEqual(made);
    expect(await store.createExperiment(caller, experiment('a', { id: made.id }))).toEqual(made);
    const taken = experiment('b', { id: made.id });
    expect((await refusalOf(store.createExperiment(caller, taken))).reason).toBe('EXPERIMENT_EXISTS');
    const failing = { ...experiment('a'), returnExisting: false };
    expect((await refusalOf(store.createExperiment(caller, failing))).reason).toBe('EXPERIMENT_EXISTS');
  });

  it('ID2: the name of a deleted experiment is created again', async () => {
    const { store, caller, namespace } = on.scene();
    const made = await store.createExperiment(caller, experiment('a'));
    await store.deleteExperiment(namespace, made.id, 'REFUSE');
    expect((await store.createExperiment(caller, experiment('a'))).id).not.toBe(made.id);
  });

  it('ID2: of many concurrent calls, one creates the experiment, and all return it', async () => {
    const { store, caller } = on.scene();
    for (let round = 0; round < 10; round += 1) {
      const name = randomUUID();
      const made = await Promise.all(Array.from({ length: 8 }, () => store.createExperiment(caller, experiment(name))));
      expect(new Set(made.map(({ id }) => id)).size).toBe(1);
    }
  });
});
