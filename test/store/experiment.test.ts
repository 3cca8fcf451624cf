import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { ExperimentFilter } from '../../src/store/contract/experiment.ts';
import { sha256 } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { newExperiment, RunScene } from './run_scene.ts';
import { refusalOf } from './scene.ts';

const ODD = 'e\u0301 \u00e9 🌊 中文 \u202e\u2028 "\\\'\n\t $1 ?1 :a %_ \\u0000';

const FULL = {
  description: ODD,
  environmentName: 'CartPole-v1',
  environmentConfigJson: ' {"gravity": 9.80,\n "n": 9007199254740993} ',
  agentType: 'pid',
  agentConfigJson: '[1.0]',
  defaultConfigJson: '{"lr": 1e-3, "lr": 0.001}',
  maxSteps: 2n ** 62n,
  seed: -1n,
  tags: ['b', 'a', 'b', 'a,', ','],
  metadataJson: '{}',
};

function key(requestId: string = randomUUID(), request = 'r') {
  return { rpc: 'CreateExperiment', requestId, requestDigest: sha256(request) };
}

describeStore('experiments', (on) => {
  const scene = () => new RunScene(on.store);

  async function names(of: RunScene, filter: ExperimentFilter = {}, limit = 1000, after?: bigint) {
    const found = await of.store.listExperiments(of.namespace, filter, { limit, after }, 'BASIC');
    return found.map(({ name }) => name);
  }

  it('an experiment is returned as it was created, by id and by name', async () => {
    const here = scene();
    const id = randomUUID();
    const made = await here.experiment({ id, name: ODD, ...FULL });
    expect(made).toMatchObject({ id, name: ODD, ...FULL, runCount: 0n });
    expect(made.createTime).toBe(made.updateTime);
    expect(Math.abs(Number(made.createTime / 1_000_000n) - Date.now())).toBeLessThan(60_000);
    expect(await here.store.getExperiment(here.namespace, { id })).toEqual(made);
    expect(await here.store.getExperiment(here.namespace, { name: ODD })).toEqual(made);
  });

  it('unset fields are absent, and a missing experiment is undefined', async () => {
    const here = scene();
    const made = await here.experiment({ name: 'bare' });
    expect(made).toMatchObject({ maxSteps: undefined, seed: undefined, tags: [], defaultConfigJson: '' });
    expect(await here.store.getExperiment(here.namespace, { id: randomUUID() })).toBeUndefined();
    expect(await here.store.getExperiment(here.namespace, { name: 'Bare' })).toBeUndefined();
  });

  it('ids and names that are in use are refused, and their experiment is unchanged', async () => {
    const here = scene();
    const made = await here.experiment({ name: 'one' });
    expect(await refusalOf(here.experiment({ name: 'one' }))).toMatchObject({
      reason: 'EXPERIMENT_EXISTS',
      metadata: { experiment: 'one' },
    });
    expect(await refusalOf(here.experiment({ id: made.id, name: 'two' }))).toMatchObject({
      reason: 'EXPERIMENT_EXISTS',
      metadata: { experiment: made.id },
    });
    expect(await names(here)).toEqual(['one']);
    expect(await scene().experiment({ name: 'one' })).toMatchObject({ name: 'one' });
  });

  it('of twenty concurrent creations with one name one succeeds; the others get an error that names it', async () => {
    const here = scene();
    const results = await Promise.allSettled(Array.from({ length: 20 }, () => here.experiment({ name: 'one' })));
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const each of results)
      if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'EXPERIMENT_EXISTS' });
    expect(await names(here)).toEqual(['one']);
  });

  it('ID1: a repeated request returns the experiment in its current state; a different one under the key is refused', async () => {
    const here = scene();
    const used = key();
    const made = await here.experiment({ name: 'one' }, used);
    await here.store.updateExperiment(here.namespace, made.id, { name: 'renamed' });
    expect(await here.experiment({ name: 'one' }, used)).toMatchObject({ id: made.id, name: 'renamed' });
    const other = { ...used, requestDigest: sha256('other') };
    expect(await refusalOf(here.experiment({ name: 'two' }, other))).toMatchObject({ reason: 'REQUEST_ID_REUSED' });
    expect(await names(here)).toEqual(['renamed']);
  });

  it('ID1: twenty concurrent requests with one key all get the same experiment', async () => {
    const here = scene();
    const used = key();
    const made = await Promise.all(Array.from({ length: 20 }, () => here.experiment({ name: 'one' }, used)));
    expect(new Set(made.map(({ id }) => id)).size).toBe(1);
    expect(await names(here)).toEqual(['one']);
  });

  it('ID1: a key of one RPC does not affect an RPC that creates another noun', async () => {
    const here = scene();
    const used = key();
    const made = await here.experiment({}, used);
    const trajectory = await here.create({}, { ...used, rpc: 'CreateTrajectory' });
    const run = await here.makeRun({}, { ...used, rpc: 'CreateRun' });
    expect(new Set([made.id, trajectory.id, run.id]).size).toBe(3);
  });

  it('are listed newest first, in pages, without large fields', async () => {
    const here = scene();
    for (let i = 0; i < 5; i += 1) await here.experiment({ name: `${i}`, ...FULL });
    expect(await names(here)).toEqual(['4', '3', '2', '1', '0']);
    const [first] = await here.store.listExperiments(here.namespace, {}, { limit: 2, after: undefined }, 'BASIC');
    expect(first).toMatchObject({
      environmentConfigJson: '',
      agentConfigJson: '',
      defaultConfigJson: '',
      metadataJson: '',
      environmentName: 'CartPole-v1',
      tags: FULL.tags,
    });
    expect(await names(here, {}, 2, first?.key)).toEqual(['3', '2']);
    const [full] = await here.store.listExperiments(here.namespace, {}, { limit: 1, after: undefined }, 'FULL');
    expect(full).toMatchObject(FULL);
  });

  it('are filtered by environment, agent and tags, combined with AND', async () => {
    const here = scene();
    await here.experiment({ name: 'a', environmentName: 'E', agentType: 'A', tags: ['x', ODD, 'a,b'] });
    await here.experiment({ name: 'b', environmentName: 'E', agentType: 'B', tags: ['x', 'y'] });
    await here.experiment({ name: 'c', tags: ['a', 'b', '{"x":1}'] });
    expect(await names(here, { environmentName: 'E' })).toEqual(['b', 'a']);
    expect(await names(here, { environmentName: 'E', agentType: 'A' })).toEqual(['a']);
    expect(await names(here, { tags: ['x'] })).toEqual(['b', 'a']);
    expect(await names(here, { tags: ['y', 'x'] })).toEqual(['b']);
    expect(await names(here, { tags: [ODD] })).toEqual(['a']);
    expect(await names(here, { tags: ['a,b'] })).toEqual(['a']);
    expect(await names(here, { tags: ['"'] })).toEqual([]);
    expect(await names(here, { tags: ['X'] })).toEqual([]);
    expect(await names(here, { environmentName: '' })).toEqual(['c']);
  });

  it('an update changes the fields it sets, clears fields set to empty, and leaves the rest', async () => {
    const here = scene();
    const made = await here.experiment({ name: 'one', ...FULL });
    const update = (changes: Parameters<typeof here.store.updateExperiment>[2]) =>
      here.store.updateExperiment(here.namespace, made.id, changes);
    expect(await update({ description: 'new', seed: 7n })).toMatchObject({ ...FULL, description: 'new', seed: 7n });
    const cleared = await update({ maxSteps: undefined, seed: undefined, tags: [], metadataJson: '' });
    expect(cleared).toMatchObject({ name: 'one', maxSteps: undefined, seed: undefined, tags: [], metadataJson: '' });
    const rest = { ...newExperiment(), ...FULL, name: 'two' };
    const { id: _, ...all } = rest;
    const updated = await update(all);
    expect(updated).toMatchObject({ ...all, id: made.id });
    expect(updated.updateTime > made.updateTime).toBe(true);
    expect(updated.createTime).toBe(made.createTime);
  });

  it('an update to a name in use is refused and changes nothing; an unknown experiment is NOT_FOUND', async () => {
    const here = scene();
    await here.experiment({ name: 'one' });
    const made = await here.experiment({ name: 'two' });
    const taken = here.store.updateExperiment(here.namespace, made.id, { name: 'one', description: 'x' });
    expect(await refusalOf(taken)).toMatchObject({ reason: 'EXPERIMENT_EXISTS', metadata: { experiment: 'one' } });
    expect(await here.store.getExperiment(here.namespace, { id: made.id })).toEqual(made);
    const nobody = here.store.updateExperiment(here.namespace, randomUUID(), { name: 'x' });
    expect((await refusalOf(nobody)).reason).toBe('EXPERIMENT_NOT_FOUND');
  });

  it('count their runs, and creating a run changes nothing else of its experiment', async () => {
    const here = scene();
    const made = await here.experiment();
    await here.makeRun({ experiment: { id: made.id } });
    await here.makeRun({ experiment: { name: made.name } });
    await here.makeRun();
    expect(await here.store.getExperiment(here.namespace, { id: made.id })).toEqual({ ...made, runCount: 2n });
  });

  it('N1: another namespace sees and changes none, and may use the same names', async () => {
    const [here, stranger] = [scene(), scene()];
    const made = await here.experiment({ name: 'one', tags: ['x'] });
    expect(await stranger.store.getExperiment(stranger.namespace, { id: made.id })).toBeUndefined();
    expect(await stranger.store.getExperiment(stranger.namespace, { name: 'one' })).toBeUndefined();
    expect(await names(stranger)).toEqual([]);
    const update = stranger.store.updateExperiment(stranger.namespace, made.id, { description: 'x' });
    expect((await refusalOf(update)).reason).toBe('EXPERIMENT_NOT_FOUND');
    const run = stranger.makeRun({ experiment: { id: made.id } });
    expect((await refusalOf(run)).reason).toBe('EXPERIMENT_NOT_FOUND');
    await stranger.experiment({ name: 'one' });
    expect(await here.store.getExperiment(here.namespace, { id: made.id })).toEqual(made);
  });
});
