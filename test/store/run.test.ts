import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { makeStep, newState, sha256, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { newMain, RunScene, runMove, substepPlan } from './run_scene.ts';
import { refusalOf } from './scene.ts';

const ODD = 'e\u0301 \u00e9 🌊 中文 \u202e\u2028 "\\\'\n\t $1 ?1 :a %_ \\u0000';
const PLAN = substepPlan(10, 4);

function key(request = 'r') {
  return { rpc: 'CreateRun', requestId: randomUUID(), requestDigest: sha256(request) };
}

describeStore('creating, getting and listing runs', (on) => {
  const scene = () => new RunScene(on.store);

  it('L2: a new run has the values of the request, is its own root, and has no unset values', async () => {
    const here = scene();
    const labels = new Map([
      ['__proto__', 'x'],
      ['model', ODD],
    ]);
    const details = { name: ODD, description: ODD, labels, metadataJson: ' {"a": 1.0} ', plan: PLAN };
    const { run, created, mainTrajectory } = await here.make(details);
    expect(created).toBe(true);
    expect(mainTrajectory).toBeUndefined();
    expect(run).toMatchObject({
      ...details,
      number: 1n,
      tree: { key: run.key, id: run.id },
      experiment: { name: 'default' },
      configJson: '{}',
      configOverridesJson: '',
      removedConfigPaths: [],
      parent: undefined,
      mainTrajectory: undefined,
      status: 'PENDING',
      statusMessage: '',
      phase: '',
      resultJson: '',
      heartbeatTimeoutMs: 300_000,
      failWhenStale: false,
      heartbeatTime: undefined,
      stale: false,
      startTime: undefined,
      endTime: undefined,
      revision: 1n,
    });
    expect(run.metrics.size).toBe(0);
    expect(run.createTime).toBe(run.updateTime);
    expect(await here.run(run.id)).toEqual(run);
    expect(await here.store.getRun(here.namespace, { name: ODD, experimentName: 'default' })).toEqual(run);
    expect(await here.store.getRun(here.namespace, { name: ODD, experimentName: 'other' })).toBeUndefined();
  });

  it('M4: the effective config is the default of the experiment merged with the run’s config, stored at creation', async () => {
    const here = scene();
    const defaultConfigJson = '{"lr": 1e-3, "opt": {"name": "adam", "eps": 1.0}, "drop": [1, {"a": null}]}';
    const { id } = await here.experiment({ defaultConfigJson });
    const own = '{"opt": {"eps": null, "beta": 9007199254740993}, "drop": [2],\n "lr": 0.01}';
    const run = await here.makeRun({ experiment: { id }, configJson: own });
    expect(run).toMatchObject({ configOverridesJson: own, removedConfigPaths: [] });
    expect(run.configJson).toBe('{"lr":0.01,"opt":{"name":"adam","eps":null,"beta":9007199254740993},"drop":[2]}');
    await here.store.updateExperiment(here.namespace, id, { defaultConfigJson: '{}' });
    expect((await here.run(run.id)).configJson).toBe(run.configJson);
    expect(await here.makeRun({ experiment: { id } })).toMatchObject({ configJson: '{}', configOverridesJson: '' });
  });

  it('M4: removed paths delete keys of the default config before the merge, and are kept as sent', async () => {
    const here = scene();
    const defaultConfigJson = '{"lr": 1e-3, "opt": {"name": "adam", "eps": 1.0}, "a/b": {"🌊": null}}';
    const { id } = await here.experiment({ defaultConfigJson });
    const removedConfigPaths = ['/opt/eps', '/a~1b/🌊', '/opt/eps', '/lr'];
    const configJson = '{"lr": null}';
    const run = await here.makeRun({ experiment: { id }, configJson, removedConfigPaths, metadataJson: '{}' });
    expect(run).toMatchObject({ configOverridesJson: configJson, removedConfigPaths });
    expect(run.configJson).toBe('{"opt":{"name":"adam"},"a/b":{},"lr":null}');
    await here.store.updateExperiment(here.namespace, id, { defaultConfigJson: '{}' });
    expect(await here.run(run.id)).toEqual(run);
    const [basic] = await here.runs();
    expect(basic).toMatchObject({ id: run.id, removedConfigPaths: [] });
    const [full] = await here.store.listRuns(here.namespace, {}, { limit: 1, after: undefined }, 'FULL');
    expect(full).toEqual(run);
  });

  it('M4: a removed path without a key in the default config is refused with its index, and nothing is created', async () => {
    const here = scene();
    const { id } = await here.experiment({ defaultConfigJson: '{"lr": 1, "list": [{"a": 1}]}' });
    const ask = (removedConfigPaths: string[]) =>
      refusalOf(here.make({ experiment: { id }, removedConfigPaths, configJson: '{"own": 1}' }));
    for (const path of ['/own', '/list/0', '/list/0/a']) {
      expect(await ask(['/lr', path])).toMatchObject({
        reason: 'INVALID_REQUEST',
        violations: [{ field: 'removed_config_paths[1]', description: expect.stringContaining(`"${path}"`) }],
      });
    }
    expect(await here.runNames()).toEqual([]);
    expect(await here.makeRun({ experiment: { id } })).toMatchObject({ number: 1n });
  });

  it('M4: a config that becomes too large by the merge is refused by name, and nothing is created', async () => {
    const here = scene();
    const half = (name: string) => JSON.stringify({ [name]: 'x'.repeat(131_072 - 20) });
    const { id } = await here.experiment({ defaultConfigJson: half('a') });
    const experiment = { id };
    await here.makeRun({ experiment, configJson: half('b') });
    const wide = JSON.stringify({ b: 'x'.repeat(131_072 + 20) });
    expect(await refusalOf(here.make({ experiment, configJson: wide }))).toMatchObject({
      reason: 'INVALID_REQUEST',
      violations: [{ field: 'config_json' }],
    });
    expect(await here.runNames()).toEqual(['run-1']);
  });

  it('M4: the main trajectory is created with the run, has its name and labels, and belongs to run and experiment', async () => {
    const here = scene();
    const state = newState('reset');
    const root = makeStep(0n, { states: [stateRef(state)], reward: 2 });
    const labels = new Map([['model', 'm']]);
    const main = newMain({ root, states: [state], taskId: 'T' });
    const { run, mainTrajectory } = await here.make({ name: 'one', labels, mainTrajectory: main });
    expect(mainTrajectory).toMatchObject({
      id: main.id,
      uid: main.uid,
      name: 'one',
      taskId: 'T',
      labels,
      runId: run.id,
      experimentId: run.experiment.id,
      nextStepNumber: 1n,
    });
    expect(run.mainTrajectory).toEqual({ id: main.id, nextStepNumber: 1n, rewardSum: 2 });
    expect(await here.get(main.id)).toEqual(mainTrajectory);
    expect(await here.history('TRAJECTORY', main)).toMatchObject([{ newStatus: 'RUNNING' }]);
    await here.appendWords(await here.get(main.id), ['a']);
    expect((await here.run(run.id)).mainTrajectory).toMatchObject({ nextStepNumber: 2n });
  });

  it('D3: a refused request creates nothing: no run, number, trajectory or experiment', async () => {
    const here = scene();
    const digest = sha256('nowhere');
    const root = makeStep(0n, { states: [{ name: 'env', digest, mediaType: '', size: 0 }] });
    const main = newMain({ root });
    expect((await refusalOf(here.make({ mainTrajectory: main }))).reason).toBe('STATE_NOT_FOUND');
    expect(await here.store.getExperiment(here.namespace, { name: 'default' })).toBeUndefined();
    const other = await here.create();
    const taken = here.make({ mainTrajectory: newMain({ id: other.id }) });
    expect((await refusalOf(taken)).reason).toBe('TRAJECTORY_EXISTS');
    expect(await here.isThere(main.id)).toBe(false);
    expect(await here.runNames()).toEqual([]);
    expect(await here.makeRun()).toMatchObject({ number: 1n });
  });

  it('a deleted main trajectory is shown as none', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a', 'b']);
    const main = { id: run.mainTrajectory?.id ?? '' };
    await here.branch(main, 0n);
    await here.delete(main, 'KEEP_SHARED');
    expect((await here.run(run.id)).mainTrajectory).toBeUndefined();
    const purged = await here.makeRunWith(['a']);
    await here.delete({ id: purged.mainTrajectory?.id ?? '' });
    expect((await here.run(purged.id)).mainTrajectory).toBeUndefined();
  });

  it('ids and names in use are refused, with the run that has them; names are scoped by experiment', async () => {
    const here = scene();
    const made = await here.makeRun({ name: 'one' });
    expect(await refusalOf(here.make({ name: 'one' }))).toMatchObject({
      reason: 'RUN_EXISTS',
      metadata: { run: 'one', run_id: made.id },
    });
    expect(await refusalOf(here.make({ id: made.id }))).toMatchObject({
      reason: 'RUN_EXISTS',
      metadata: { run: made.id, run_id: made.id },
    });
    const { id } = await here.experiment();
    expect(await here.makeRun({ experiment: { id }, name: 'one' })).toMatchObject({ name: 'one', number: 1n });
    expect(await here.run(made.id)).toEqual(made);
  });

  it('an unknown experiment is not found, and is not created', async () => {
    const here = scene();
    expect(await refusalOf(here.make({ experiment: { name: 'none' } }))).toMatchObject({
      reason: 'EXPERIMENT_NOT_FOUND',
      metadata: { experiment: 'none' },
    });
    const id = randomUUID();
    expect((await refusalOf(here.make({ experiment: { id } }))).metadata).toEqual({ experiment: id });
    const list = here.runs({ experiment: { id } });
    expect((await refusalOf(list)).reason).toBe('EXPERIMENT_NOT_FOUND');
  });

  it('M4: RETURN_EXISTING returns the run of that name in its current state, with its main trajectory', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a'], { name: 'one', configJson: '{"lr": 1.0}', plan: PLAN });
    await here.move(run, 'start');
    const before = await here.run(run.id);
    const again = await here.make({
      name: 'one',
      returnExisting: true,
      labels: new Map([['other', 'x']]),
      mainTrajectory: newMain(),
      configJson: '{"lr":1}',
      plan: { ...PLAN },
    });
    expect(again).toMatchObject({ created: false, run: before, mainTrajectory: { nextStepNumber: 1n } });
    const unsaid = await here.make({ name: 'one', returnExisting: true });
    expect(unsaid).toEqual(again);
    expect(await here.runNames()).toEqual(['one']);
    const made = await here.make({ name: 'two', returnExisting: true });
    expect(made).toMatchObject({ created: true, run: { name: 'two', number: 2n } });
  });

  it('M4: RETURN_EXISTING refuses another config or plan, and names every field that differs', async () => {
    const here = scene();
    const { id } = await here.experiment({ defaultConfigJson: '{"lr": 2}' });
    const experiment = { id };
    const configJson = '{"optimizer": {"lr": 0.1, "name": "adam"}, "a/b": 1}';
    const made = await here.makeRun({ experiment, name: 'one', configJson, plan: PLAN });
    const ask = (fields: { configJson?: string; plan?: typeof PLAN | { stagePlans: []; concurrency: number } }) =>
      refusalOf(here.make({ experiment, name: 'one', returnExisting: true, ...fields }));
    const other = await ask({ configJson: '{"optimizer":{"name":"adam","lr":0.2},"seed":1,"a/b":1}' });
    expect(other).toMatchObject({
      reason: 'CONFIG_MISMATCH',
      metadata: { run_id: made.id, fields: 'config_json/optimizer/lr,config_json/seed' },
    });
    expect(other.message).toContain('config_json/optimizer/lr');
    // Values from the experiment do not count as stated by the run.
    expect((await ask({ configJson: '{}' })).metadata.fields).toBe('config_json/a~1b,config_json/optimizer');
    const plan = { ...substepPlan(11, 4), concurrency: 2 };
    expect((await ask({ plan })).metadata.fields).toBe('plan.concurrency,plan.stage_plans[TRAIN_STEP].stages');
    const none = await ask({ plan: { stagePlans: [], concurrency: 1 } });
    expect(none.metadata.fields).toBe('plan.stage_plans[TRAIN_STEP]');
    const many = JSON.stringify(
      Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`${i}${'k'.repeat(500)}`, i])),
    );
    expect((await ask({ configJson: many })).metadata.fields?.length).toBeLessThan(4096);
    expect(await here.run(made.id)).toEqual(made);
  });

  it('M4: RETURN_EXISTING compares removed paths as sent, whatever the current default config', async () => {
    const here = scene();
    const { id } = await here.experiment({ defaultConfigJson: '{"lr": 2, "seed": 1}' });
    const stated = { experiment: { id }, name: 'one', configJson: '{"a": 1}', removedConfigPaths: ['/lr', '/seed'] };
    const made = await here.makeRun(stated);
    await here.store.updateExperiment(here.namespace, id, { defaultConfigJson: '{}' });
    const again = { ...stated, returnExisting: true };
    expect(await here.make(again)).toMatchObject({ created: false, run: made });
    expect(await here.make({ ...again, removedConfigPaths: ['/seed', '/lr'] })).toMatchObject({ run: made });
    expect(await here.make({ ...again, configJson: '', removedConfigPaths: [] })).toMatchObject({ run: made });
    for (const removedConfigPaths of [[], ['/lr'], ['/lr', '/other']]) {
      const refused = await refusalOf(here.make({ ...again, removedConfigPaths }));
      const metadata = { run_id: made.id, fields: 'removed_config_paths' };
      expect(refused).toMatchObject({ reason: 'CONFIG_MISMATCH', metadata });
    }
    const without = await refusalOf(here.make({ ...again, configJson: '' }));
    expect(without.metadata.fields).toBe('config_json/a');
  });

  it('M4: RETURN_EXISTING of a run without a plan names the plan of the request', async () => {
    const here = scene();
    await here.makeRun({ name: 'one' });
    const stated = here.make({ name: 'one', returnExisting: true, plan: PLAN });
    expect((await refusalOf(stated)).metadata.fields).toBe('plan');
    expect((await here.make({ name: 'one', returnExisting: true, configJson: ' {} ' })).created).toBe(false);
  });

  it('M4: of twenty racers with RETURN_EXISTING one creates the run, and all get it', async () => {
    const here = scene();
    const made = await Promise.all(
      Array.from({ length: 20 }, () =>
        here.make({ name: 'one', returnExisting: true, configJson: '{"a":1}', mainTrajectory: newMain() }),
      ),
    );
    expect(made.filter(({ created }) => created)).toHaveLength(1);
    expect(new Set(made.map(({ run }) => run.id)).size).toBe(1);
    expect(new Set(made.map(({ mainTrajectory }) => mainTrajectory?.uid)).size).toBe(1);
    expect(await here.store.listTrajectories(here.namespace, {}, { limit: 9, after: undefined })).toHaveLength(1);
  });

  it('ID1: a repeated request returns the run in its current state', async () => {
    const here = scene();
    const used = key();
    const { run, mainTrajectory } = await here.make({ name: 'one', mainTrajectory: newMain() }, used);
    await here.move(run, 'start');
    await here.appendWords(await here.get(mainTrajectory?.id ?? ''), ['a']);
    const again = await here.make({ name: 'one', mainTrajectory: newMain() }, used);
    expect(again).toEqual({
      run: await here.run(run.id),
      created: false,
      mainTrajectory: await here.get(mainTrajectory?.id ?? ''),
    });
    expect(again.run.status).toBe('RUNNING');
    const other = { ...used, requestDigest: sha256('other') };
    expect(await refusalOf(here.make({}, other))).toMatchObject({
      reason: 'REQUEST_ID_REUSED',
      metadata: { request_id: used.requestId },
    });
  });

  it('ID1: twenty concurrent requests with one key all get the same run', async () => {
    const here = scene();
    for (const name of ['one', '']) {
      const used = key(name);
      const made = await Promise.all(
        Array.from({ length: 20 }, () => here.make({ name, mainTrajectory: newMain() }, used)),
      );
      expect(new Set(made.map(({ run }) => run.id)).size).toBe(1);
      expect(made.filter(({ created }) => created)).toHaveLength(1);
    }
    expect(await here.runNames()).toEqual(['run-2', 'one']);
  });

  it('ID1: a request that RETURN_EXISTING answered gets the same answer when repeated', async () => {
    const here = scene();
    const run = await here.makeRun({ name: 'one' });
    const used = key();
    const asked = () => here.make({ name: 'one', returnExisting: true }, used);
    const first = await asked();
    await here.store.updateRun(here.namespace, run.id, { name: 'renamed' });
    expect(await asked()).toMatchObject({ created: false, run: { id: first.run.id, name: 'renamed' } });
    expect(await here.runNames()).toEqual(['renamed']);
  });

  it('ID1: if the created run was deleted, a repetition is NOT_FOUND, also after the purge', async () => {
    const here = scene();
    const used = key();
    const run = await here.makeRun({ name: 'one' }, used);
    await here.store.deleteRun(here.namespace, run.id, 'REFUSE');
    const again = () => refusalOf(here.make({ name: 'one' }, used));
    const hidden = await again();
    expect(hidden).toMatchObject({ reason: 'RUN_NOT_FOUND', metadata: { run: run.id } });
    expect(hidden.message).toContain(used.requestId);
    while (await here.store.purgeDeleted(1000));
    expect((await again()).reason).toBe('RUN_NOT_FOUND');
    const other = { ...used, requestDigest: sha256('other') };
    expect((await refusalOf(here.make({}, other))).reason).toBe('REQUEST_ID_REUSED');
  });

  it('are listed newest first, in pages, without large fields', async () => {
    const here = scene();
    for (let i = 0; i < 5; i += 1)
      await here.makeRun({ name: `${i}`, configJson: '{"a":1}', metadataJson: '{}', plan: PLAN });
    expect(await here.runNames()).toEqual(['4', '3', '2', '1', '0']);
    const [first, second] = await here.runs();
    expect(first).toMatchObject({
      configJson: '',
      configOverridesJson: '',
      metadataJson: '',
      resultJson: '',
      plan: PLAN,
    });
    const page = { limit: 2, after: second?.key };
    const next = await here.store.listRuns(here.namespace, {}, page, 'FULL');
    expect(next.map(({ name }) => name)).toEqual(['2', '1']);
    expect(next[0]).toEqual(await here.run(next[0]?.id ?? ''));
  });

  it('F-41, F-45, S-14: are filtered by experiment, name, status, labels, parent and time, combined with AND', async () => {
    const here = scene();
    const { id, name } = await here.experiment();
    const a = await here.makeRun({
      name: 'a',
      labels: new Map([
        ['m', '1'],
        ['t', 'x'],
      ]),
      status: 'RUNNING',
    });
    const b = await here.makeRunWith(['s'], { name: 'b', experiment: { id }, labels: new Map([['m', '1']]) });
    const { run: c } = await here.branchOff(b, 0n, { name: 'c', status: 'INITIALIZING' });
    await here.move(a, 'complete');
    expect(await here.runNames({ experiment: { id } })).toEqual(['c', 'b']);
    expect(await here.runNames({ experiment: { name } })).toEqual(['c', 'b']);
    expect(await here.runNames({ experiment: { name: 'default' } })).toEqual(['a']);
    expect(await here.runNames({ name: 'b' })).toEqual(['b']);
    expect(await here.runNames({ statuses: ['COMPLETED', 'INITIALIZING'] })).toEqual(['c', 'a']);
    expect(await here.runNames({ statuses: [] })).toEqual([]);
    expect(await here.runNames({ labels: new Map([['m', '1']]) })).toEqual(['b', 'a']);
    expect(
      await here.runNames({
        labels: new Map([
          ['m', '1'],
          ['t', 'x'],
        ]),
      }),
    ).toEqual(['a']);
    expect(await here.runNames({ labels: new Map([['M', '1']]) })).toEqual([]);
    expect(await here.runNames({ parentId: b.id })).toEqual(['c']);
    expect(await here.runNames({ parentId: randomUUID() })).toEqual([]);
    expect(await here.runNames({ rootsOnly: true })).toEqual(['b', 'a']);
    expect(await here.runNames({ createTimeFrom: b.createTime, createTimeTo: c.createTime })).toEqual(['b']);
    expect(await here.runNames({ experiment: { id }, statuses: ['PENDING'] })).toEqual(['b']);
  });

  it('an update changes the fields it sets and leaves the rest; metrics are merged by key, labels replaced', async () => {
    const here = scene();
    const made = await here.makeRun({
      name: 'one',
      labels: new Map([['a', '1']]),
      plan: PLAN,
      heartbeatTimeoutMs: 1000,
    });
    const update = (changes: Parameters<typeof here.store.updateRun>[2]) =>
      here.store.updateRun(here.namespace, made.id, changes);
    await update({
      metrics: new Map([
        ['x', 1],
        ['y', Number.NaN],
      ]),
    });
    const some = await update({
      labels: new Map([['b', ODD]]),
      metrics: new Map([
        ['x', -0],
        ['z', Infinity],
      ]),
      phase: ODD,
    });
    expect(some).toMatchObject({
      ...made,
      labels: new Map([['b', ODD]]),
      phase: ODD,
      revision: 3n,
      updateTime: some.updateTime,
      metrics: some.metrics,
    });
    expect(some.metrics).toEqual(
      new Map([
        ['x', -0],
        ['y', Number.NaN],
        ['z', Infinity],
      ]),
    );
    expect(some.updateTime > made.updateTime).toBe(true);
    const rest = { name: 'two', description: 'd', metadataJson: '[]', statusMessage: 'm', phase: '' };
    expect(
      await update({ ...rest, plan: undefined, heartbeatTimeoutMs: undefined, failWhenStale: true }),
    ).toMatchObject({
      ...rest,
      plan: undefined,
      heartbeatTimeoutMs: 300_000,
      failWhenStale: true,
      labels: some.labels,
      status: 'PENDING',
    });
    expect(await here.run(made.id)).toMatchObject({ name: 'two', revision: 4n });
  });

  it('L5: an update of phase and message changes no status and writes no StatusChange', async () => {
    const here = scene();
    const made = await here.makeRun({ status: 'RUNNING' });
    const changes = { phase: 'p', statusMessage: 'm', metrics: new Map([['a', 1]]) };
    expect(await here.store.updateRun(here.namespace, made.id, changes)).toMatchObject({
      status: 'RUNNING',
      phase: 'p',
    });
    expect(await here.history('RUN', made)).toHaveLength(1);
  });

  it('an update to a name in use, or to over 256 metrics, is refused and changes nothing', async () => {
    const here = scene();
    const one = await here.makeRun({ name: 'one' });
    const two = await here.makeRun({ name: 'two' });
    const update = (changes: Parameters<typeof here.store.updateRun>[2]) =>
      refusalOf(here.store.updateRun(here.namespace, two.id, changes));
    expect(await update({ name: 'one', description: 'x' })).toMatchObject({
      reason: 'RUN_EXISTS',
      metadata: { run: 'one', run_id: one.id },
    });
    const many = new Map(Array.from({ length: 257 }, (_, i) => [`${i}`, i]));
    expect(await update({ metrics: many, description: 'x' })).toMatchObject({
      reason: 'INVALID_REQUEST',
      violations: [{ field: 'metrics' }],
    });
    expect(await here.run(two.id)).toEqual(two);
    expect(await here.store.updateRun(here.namespace, two.id, { name: 'two' })).toMatchObject({ name: 'two' });
    const nobody = here.store.updateRun(here.namespace, randomUUID(), { name: 'x' });
    expect((await refusalOf(nobody)).reason).toBe('RUN_NOT_FOUND');
  });

  it('metrics set by twenty concurrent updates are all stored, and each raises the revision', async () => {
    const here = scene();
    const made = await here.makeRun();
    const keys = Array.from({ length: 20 }, (_, i) => `m${i}`);
    await Promise.all(
      keys.map((each, i) => here.store.updateRun(here.namespace, made.id, { metrics: new Map([[each, i]]) })),
    );
    const now = await here.run(made.id);
    expect(now.metrics).toEqual(new Map(keys.map((each, i) => [each, i])));
    expect(now.revision).toBe(21n);
  });

  it('N1: another namespace sees and changes no run, and branches from none', async () => {
    const [here, stranger] = [scene(), scene()];
    const made = await here.makeRunWith(['a'], { name: 'one' });
    const { store, namespace, caller } = stranger;
    expect(await store.getRun(namespace, { id: made.id })).toBeUndefined();
    expect(await store.getRun(namespace, { name: 'one', experimentName: 'default' })).toBeUndefined();
    expect(await stranger.runs()).toEqual([]);
    expect(await stranger.runs({ parentId: made.id })).toEqual([]);
    expect(await store.listRunTree(namespace, made.id, { limit: 9, after: undefined })).toBeUndefined();
    expect(await store.readRunChanges(namespace, made.id, undefined, true)).toBeUndefined();
    const refused = [
      () => store.updateRun(namespace, made.id, { name: 'x' }),
      () => store.moveRun(caller, made.id, runMove('start')),
      () => store.heartbeatRun(namespace, made.id),
      () => stranger.branchOff(made, 0n),
      () => stranger.history('RUN', made),
    ];
    for (const call of refused) expect((await refusalOf(call())).reason).toBe('RUN_NOT_FOUND');
    expect(await stranger.makeRun({ name: 'one' })).toMatchObject({ name: 'one', number: 1n });
    expect(await here.run(made.id)).toEqual(made);
  });

  it('V4, N1: the largest runs are those of one namespace', async () => {
    const [here, there] = [scene(), scene()];
    const small = await here.makeRunWith(['one']);
    const large = await here.makeRunWith(['one', 'two']);
    const other = await there.makeRunWith(['one', 'two', 'three']);
    const sizes = async ({ namespace }: RunScene) =>
      (await on.store.findLargestRuns(namespace)).map(({ runId, steps }) => [runId, steps]);
    expect(await sizes(here)).toEqual([
      [large.id, 2n],
      [small.id, 1n],
    ]);
    expect(await sizes(there)).toEqual([[other.id, 3n]]);
    expect(await sizes(scene())).toEqual([]);
  });
});
