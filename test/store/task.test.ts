import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
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

function validatorUpsert(taskId: string, type: string, fields: Partial<ValidatorUpsert> = {}): ValidatorUpsert {
  const nothing = undefined;
  return {
    newId: randomUUID(),
    taskId,
    type,
    query: nothing,
    method: nothing,
    expectedResult: nothing,
    configJson: nothing,
    advisory: nothing,
    ...fields,
  };
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
    expect((await refusalOf(on.scene().store.upsertValidators(randomUUID(), [validatorUpsert('t', 's')]))).reason).toBe(
      'TASK_NOT_FOUND',
    );
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

  describeValidators();

  function describeValidators(): void {
    const validators = (here: Scene) => ({
      upsert: (...given: ValidatorUpsert[]) => here.store.upsertValidators(here.namespace, given),
      list: (taskId: string, page: { limit: number; after: string | undefined } = ALL) =>
        here.store.listValidators(here.namespace, taskId, page),
    });
    const fields = { query: 'is it on?', method: 'adb', expectedResult: '1', configJson: '{"x":1}', advisory: true };

    it('C-32: a task has one validator of each type, found by its assigned id; unset fields never overwrite', async () => {
      const here = on.scene();
      await tasks(here).upsert(taskUpsert('t'), taskUpsert('u'));
      const { upsert, list } = validators(here);
      const whole = validatorUpsert('t', 'state', fields);
      const made = await upsert(whole, validatorUpsert('u', 'state'), validatorUpsert('t', 'api'));
      expect(made.created).toBe(3);
      expect(made.ids[0]).toBe(whole.newId);
      const before = await here.store.getValidator(here.namespace, whole.newId);
      expect(before).toMatchObject({ id: whole.newId, taskId: 't', type: 'state', ...fields });
      const again = await upsert(validatorUpsert('t', 'api'), validatorUpsert('t', 'state'), validatorUpsert('t', 'z'));
      expect(again.created).toBe(1);
      expect(again.ids.slice(0, 2)).toEqual([made.ids[2], made.ids[0]]);
      expect(await here.store.getValidator(here.namespace, whole.newId)).toEqual(before);
      await upsert(validatorUpsert('t', 'state', { advisory: false, query: '' }));
      expect(await here.store.getValidator(here.namespace, whole.newId)).toMatchObject({
        ...fields,
        advisory: false,
        query: '',
      });
      expect((await list('u')).map(({ type, advisory }) => [type, advisory])).toEqual([['state', false]]);
      expect(await here.store.getValidator(here.namespace, randomUUID())).toBeUndefined();
      expect(await here.store.getValidator('other', whole.newId)).toBeUndefined();
    });

    it('validators are listed by type, in byte order', async () => {
      const here = on.scene();
      await tasks(here).upsert(taskUpsert('t'));
      const { upsert, list } = validators(here);
      await upsert(...['b', 'Z', 'a', 'ä', '_'].map((type) => validatorUpsert('t', type)));
      expect((await list('t')).map(({ type }) => type)).toEqual(['Z', '_', 'a', 'b', 'ä']);
      expect((await list('t', { limit: 2, after: '_' })).map(({ type }) => type)).toEqual(['a', 'b']);
      expect((await refusalOf(list('none'))).reason).toBe('TASK_NOT_FOUND');
    });

    it('all or none: for an unknown task no validators are stored', async () => {
      const here = on.scene();
      await tasks(here).upsert(taskUpsert('t'));
      const refusal = await refusalOf(
        validators(here).upsert(validatorUpsert('t', 'state'), validatorUpsert('none', 'state')),
      );
      expect(refusal).toMatchObject({ reason: 'TASK_NOT_FOUND', metadata: { task: 'none' } });
      expect(await validators(here).list('t')).toEqual([]);
    });

    it('racing calls create one row, and all get its id', async () => {
      const here = on.scene();
      await tasks(here).upsert(taskUpsert('t'), taskUpsert('u'));
      const { upsert, list } = validators(here);
      const both = () => [validatorUpsert('t', 'state'), validatorUpsert('u', 'state')];
      const answers = await Promise.all(
        Array.from({ length: RACERS }, (_, i) => upsert(...(i % 2 === 0 ? both() : both().reverse()))),
      );
      const [ofT] = await list('t');
      expect(new Set(answers.map(({ ids }, i) => ids[i % 2]))).toEqual(new Set([ofT?.id]));
      expect(answers.reduce((sum, { created }) => sum + created, 0)).toBe(2);
      expect((await countRows(on.sql, here.namespace)).validators).toBe(2);
    });
  }
});
