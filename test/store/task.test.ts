import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { TaskUpsert, ValidatorUpsert } from '../../src/store/contract/task.ts';
import { describeStore } from './on_store.ts';
import type { Scene } from './scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';
import { statementsOf } from './statement_count.ts';

const ALL = { limit: 1000, after: undefined };
const RACERS = 20;

function taskUpsert(id: string, fields: Partial<TaskUpsert> = {}): TaskUpsert {
  const nothing = undefined;
  return {
    id,
    name: nothing,
    description: nothing,
    difficulty: nothing,
    category: nothing,
    appName: nothing,
    sourceType: nothing,
    maxTurns: nothing,
    tags: nothing,
    prerequisites: nothing,
    inputJson: nothing,
    metadataJson: nothing,
    ...fields,
  };
}

function judged(id: string, validators: Readonly<Record<string, Partial<ValidatorUpsert>>>): TaskUpsert {
  const given = Object.entries(validators).map(([type, fields]): [string, ValidatorUpsert] => [
    type,
    { newId: randomUUID(), ...fields },
  ]);
  return { id, validators: new Map(given) };
}

const WHOLE = {
  name: 'Turn on night mode',
  description: 'Open the settings, …',
  difficulty: 'easy',
  category: 'settings',
  appName: 'Settings',
  sourceType: 'demo_training',
  maxTurns: 15n,
  tags: ['display', 'ümlaut'],
  prerequisites: ['unlocked'],
  inputJson: '{"seed":1}',
  metadataJson: '{"a": 1}',
};

describeStore('the catalogue of tasks', (on) => {
  const tasks = (here: Scene) => ({
    upsert: (...given: TaskUpsert[]) => here.store.upsertTasks(here.namespace, given),
    get: async (id: string) => {
      const task = await here.store.getTask(here.namespace, id);
      if (task === undefined) throw new Error(`task ${id} was not found`);
      return task;
    },
    ids: async (
      ...[filter, page = ALL]: [
        Parameters<typeof here.store.listTasks>[1],
        { limit: number; after?: bigint | undefined }?,
      ]
    ) =>
      (await here.store.listTasks(here.namespace, filter, { after: undefined, ...page }, 'BASIC')).map(({ id }) => id),
  });

  it('C-08, C-31: a task keeps all values of the request, and unset values are empty', async () => {
    const here = on.scene();
    const { upsert, get } = tasks(here);
    expect(await upsert(taskUpsert('whole', WHOLE), taskUpsert('bare'))).toEqual({
      created: 2,
      updated: 0,
      unchanged: 0,
    });
    expect(await get('whole')).toMatchObject({ id: 'whole', ...WHOLE });
    expect(await get('bare')).toMatchObject({
      name: '',
      description: '',
      maxTurns: undefined,
      tags: [],
      prerequisites: [],
      inputJson: '',
      metadataJson: '',
    });
    expect(await here.store.getTask(here.namespace, 'none')).toBeUndefined();
  });

  it('C-31: unset fields never overwrite; set fields do, also with an empty value', async () => {
    const { upsert, get } = tasks(on.scene());
    await upsert(taskUpsert('t', WHOLE));
    const before = await get('t');
    expect(await upsert(taskUpsert('t'))).toEqual({ created: 0, updated: 0, unchanged: 1 });
    expect(await upsert(taskUpsert('t', WHOLE))).toEqual({ created: 0, updated: 0, unchanged: 1 });
    expect(await get('t')).toEqual(before);
    const changes = { name: 'Another', tags: [], inputJson: '', maxTurns: 0n };
    expect(await upsert(taskUpsert('t', changes), taskUpsert('new'))).toEqual({ created: 1, updated: 1, unchanged: 0 });
    const after = await get('t');
    expect(after).toEqual({ ...before, ...changes, updateTime: after.updateTime });
    expect(after.updateTime).toBeGreaterThan(before.updateTime);
  });

  it('racing calls create one row, and none of their values is lost', async () => {
    const here = on.scene();
    const { upsert, get } = tasks(here);
    const fields = Object.entries(WHOLE);
    const answers = await Promise.all(
      Array.from({ length: RACERS }, (_, i) => {
        const [field, value] = fields[i % fields.length] ?? [];
        return upsert(taskUpsert(`other-${i % 3}`), taskUpsert('raced', { [`${field}`]: value }));
      }),
    );
    expect(answers.reduce((sum, { created }) => sum + created, 0)).toBe(4);
    expect(await get('raced')).toMatchObject(WHOLE);
    expect((await countRows(on.sql, here.namespace)).tasks).toBe(4);
  });

  it('lists newest first, in pages, with all filters combined; the BASIC view omits JSON', async () => {
    const here = on.scene();
    const { upsert, ids } = tasks(here);
    for (const [id, difficulty, tags] of [
      ['a', 'easy', ['x', 'y']],
      ['b', 'hard', ['x']],
      ['c', 'easy', ['y']],
    ] as const)
      await upsert(taskUpsert(id, { ...WHOLE, difficulty, tags, category: id, sourceType: `from ${id}` }));
    expect(await ids({})).toEqual(['c', 'b', 'a']);
    expect(await ids({ difficulty: 'easy' })).toEqual(['c', 'a']);
    expect(await ids({ tags: ['x', 'y'] })).toEqual(['a']);
    expect(await ids({ tags: ['x"'] })).toEqual([]);
    expect(await ids({ category: 'b' })).toEqual(['b']);
    expect(await ids({ sourceType: 'from c', difficulty: 'hard' })).toEqual([]);
    expect(await ids({ ids: ['a', 'c', 'none'] })).toEqual(['c', 'a']);
    expect(await ids({ ids: [] })).toEqual([]);
    const [first, second] = await here.store.listTasks(here.namespace, {}, { limit: 2, after: undefined }, 'FULL');
    expect([first?.id, second?.id, first?.inputJson]).toEqual(['c', 'b', WHOLE.inputJson]);
    expect(await ids({}, { limit: 2, after: second!.key })).toEqual(['a']);
    const [basic] = await here.store.listTasks(here.namespace, {}, ALL, 'BASIC');
    expect(basic).toMatchObject({ description: WHOLE.description, tags: ['y'], inputJson: '', metadataJson: '' });
  });

  it('N1: the catalogue of one namespace does not affect another', async () => {
    const [here, other] = [on.scene(), on.scene()];
    await tasks(here).upsert(taskUpsert('t', { name: 'ours' }));
    expect(await other.store.getTask(other.namespace, 't')).toBeUndefined();
    expect(await tasks(other).ids({})).toEqual([]);
    await tasks(other).upsert(taskUpsert('t', { name: 'theirs' }));
    expect(await tasks(here).get('t')).toMatchObject({ name: 'ours' });
  });

  it('a thousand tasks take as many statements as one, whether created, changed or unchanged', async () => {
    const { upsert } = tasks(on.scene());
    const cost = (count: number, name: string) =>
      statementsOf(on.engine, () =>
        upsert(...Array.from({ length: count }, (_, i) => taskUpsert(`${count}/${i}`, { name }))),
      );
    for (const name of ['made', 'changed', 'changed']) {
      const one = await cost(1, name);
      expect(await cost(1000, name)).toBeLessThanOrEqual(one + (on.engine === 'postgres' ? 1 : 0));
    }
  });

  const FIELDS = { query: 'is it on?', method: 'adb', expectedResult: '1', configJson: '{"x":1}', advisory: true };

  it('C-32: a task has one validator of each type, whose id stays; unset fields and absent types never overwrite', async () => {
    const here = on.scene();
    const { upsert, get } = tasks(here);
    const made = judged('t', { state: FIELDS, api: {} });
    expect(await upsert(made, judged('u', { state: {} }))).toEqual({ created: 2, updated: 0, unchanged: 0 });
    const before = await get('t');
    expect(new Set(before.validators.keys())).toEqual(new Set(['state', 'api']));
    expect(before.validators.get('state')).toMatchObject({ id: made.validators!.get('state')!.newId, ...FIELDS });
    expect(before.validators.get('api')).toMatchObject({ query: '', method: '', configJson: '', advisory: false });
    expect(await upsert(judged('t', { state: {} }))).toEqual({ created: 0, updated: 0, unchanged: 1 });
    expect(await upsert(judged('t', { state: FIELDS, api: {} }))).toEqual({ created: 0, updated: 0, unchanged: 1 });
    expect(await get('t')).toEqual(before);
    const change = judged('t', { state: { advisory: false, query: '' }, more: {} });
    expect(await upsert(change)).toEqual({ created: 0, updated: 1, unchanged: 0 });
    const after = await get('t');
    expect(after.updateTime).toBeGreaterThan(before.updateTime);
    expect(after.validators.get('api')).toEqual(before.validators.get('api'));
    expect(after.validators.get('more')?.id).toBe(change.validators!.get('more')!.newId);
    expect(after.validators.get('state')).toMatchObject({
      ...FIELDS,
      id: before.validators.get('state')?.id,
      advisory: false,
      query: '',
    });
    expect((await get('u')).validators.get('state')).toMatchObject({ advisory: false, query: '' });
    const [basic] = await here.store.listTasks(here.namespace, { ids: ['t'] }, ALL, 'BASIC');
    const [full] = await here.store.listTasks(here.namespace, { ids: ['t'] }, ALL, 'FULL');
    expect([basic?.validators.size, full]).toEqual([0, after]);
  });

  it('C-32: types are removed, unknown ones are ignored, and one that comes again gets another id', async () => {
    const here = on.scene();
    const { upsert, get } = tasks(here);
    await upsert(judged('t', { state: {}, api: {} }), judged('u', { state: {} }));
    const before = await get('t');
    const removal = { id: 't', removedValidators: ['state', 'none'] };
    expect(await upsert(removal)).toEqual({ created: 0, updated: 1, unchanged: 0 });
    expect([...(await get('t')).validators]).toEqual([['api', before.validators.get('api')]]);
    expect(await upsert(removal)).toEqual({ created: 0, updated: 0, unchanged: 1 });
    expect([...(await get('u')).validators.keys()]).toEqual(['state']);
    await upsert(judged('t', { state: {} }));
    expect((await get('t')).validators.get('state')?.id).not.toBe(before.validators.get('state')?.id);
  });

  it('C-32: a task has a bounded number of validators with bounded texts, counted after the upsert; all or none', async () => {
    const here = on.scene();
    const { upsert, get } = tasks(here);
    const many = (count: number, fields = {}) =>
      judged('t', Object.fromEntries(Array.from({ length: count }, (_, i) => [`type ${i}`, fields])));
    await upsert(many(LIMITS.validators));
    const before = await get('t');
    const bound = { reason: 'INVALID_REQUEST', violations: [{ field: 'tasks[1].validators' }] };
    expect(await refusalOf(upsert(taskUpsert('new'), judged('t', { more: {} })))).toMatchObject(bound);
    const large = { query: 'ü'.repeat(LIMITS.validatorBytes / 2 / LIMITS.validators) };
    await upsert(many(LIMITS.validators, large));
    const larger = judged('t', { 'type 0': { method: 'm' } });
    expect(await refusalOf(upsert(taskUpsert('new'), larger))).toMatchObject(bound);
    expect(await here.store.getTask(here.namespace, 'new')).toBeUndefined();
    expect([...(await get('t')).validators.keys()].toSorted()).toEqual([...before.validators.keys()].toSorted());
    await upsert({ ...judged('t', { more: {} }), removedValidators: ['type 0'] });
  });

  it('C-32: racing calls create one validator of each type', async () => {
    const here = on.scene();
    const { upsert, get } = tasks(here);
    const both = () => [judged('t', { state: {} }), judged('u', { state: {} })];
    await Promise.all(Array.from({ length: RACERS }, (_, i) => upsert(...(i % 2 === 0 ? both() : both().reverse()))));
    expect([(await get('t')).validators.size, (await get('u')).validators.size]).toEqual([1, 1]);
    expect((await countRows(on.sql, here.namespace)).validators).toBe(2);
  });
});
