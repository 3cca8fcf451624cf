import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { STATUSES } from '../../src/domain/lifecycle.ts';
import type { EnvironmentFilter, EnvironmentUpsert } from '../../src/store/contract/environment.ts';
import type { Page } from '../../src/store/contract/request.ts';
import { describeStore } from './on_store.ts';
import { newEnvironment, RolloutScene } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';

const ALL = { limit: 1000, after: undefined };

describeStore('environments', (on) => {
  const scene = () => new RolloutScene(on.store);
  const upsert = (here: RolloutScene, run: { readonly id: string }, fields: Partial<EnvironmentUpsert> = {}) =>
    here.store.upsertEnvironment(here.caller, newEnvironment(run.id, fields));
  const make = async (here: RolloutScene, run: { readonly id: string }, fields: Partial<EnvironmentUpsert> = {}) =>
    (await upsert(here, run, fields)).environment;
  const find = async (here: RolloutScene, id: string) =>
    (await here.store.listEnvironments(here.namespace, { ids: [id] }, ALL))[0];
  const reason = (call: Promise<unknown>) => refusalOf(call).then((refusal) => refusal.reason);

  it('C-38: an environment has the values of its creation; unset fields stay', async () => {
    const here = scene();
    const run = await here.makeRun();
    const labels = new Map([['zone', 'a']]);
    const fields = { type: 'android', externalId: 'gbox-1', labels, configJson: '{"api": 34}', phase: 'booting' };
    const { environment: made, created } = await upsert(here, run, fields);
    expect(created).toBe(true);
    expect(made).toMatchObject({ run: { id: run.id }, status: 'PENDING', statusMessage: '', ...fields });
    expect([made.startTime, made.endTime]).toEqual([undefined, undefined]);
    expect(await find(here, made.id)).toEqual(made);
    expect(await find(scene(), made.id)).toBeUndefined();
    const { id } = made;
    expect(await upsert(here, run, { id })).toEqual({ environment: made, created: false });
    expect(await upsert(here, run, { id, ...fields })).toEqual({ environment: made, created: false });
    const changed = await make(here, run, { id, phase: '', labels: new Map() });
    expect(changed).toMatchObject({ ...fields, phase: '', labels: new Map(), status: 'PENDING' });
    expect(changed.updateTime).toBeGreaterThan(made.updateTime);
    expect(await here.history('ENVIRONMENT', made)).toHaveLength(1);
  });

  it('C-38: one can be created in every status', async () => {
    const here = scene();
    const run = await here.makeRun();
    for (const status of STATUSES) {
      const made = await make(here, run, { status, message: 'so' });
      expect(made).toMatchObject({ status, statusMessage: 'so' });
      const times = [made.startTime !== undefined, made.endTime !== undefined];
      expect(times).toEqual([status === 'RUNNING', ['COMPLETED', 'FAILED', 'CANCELLED'].includes(status)]);
    }
  });

  it('C-38: one of another run, or of an unknown run, is refused', async () => {
    const here = scene();
    const [run, other] = [await here.makeRun(), await here.makeRun()];
    const { id } = await make(here, run);
    expect(await reason(upsert(here, other, { id }))).toBe('ENVIRONMENT_EXISTS');
    expect(await reason(upsert(here, { id: randomUUID() }))).toBe('RUN_NOT_FOUND');
    expect(await reason(upsert(scene(), run))).toBe('RUN_NOT_FOUND');
    await here.store.deleteRun(here.namespace, run.id, 'REFUSE');
    expect(await reason(upsert(here, run, { id }))).toBe('RUN_NOT_FOUND');
  });

  it('ID1: twenty racing upserts of one id create one environment', async () => {
    const here = scene();
    const run = await here.makeRun();
    const id = randomUUID();
    const made = await Promise.all(Array.from({ length: 20 }, () => upsert(here, run, { id, status: 'RUNNING' })));
    expect(made.filter(({ created }) => created)).toHaveLength(1);
    expect((await countRows(on.sql, here.namespace)).environments).toBe(1);
    expect(await here.history('ENVIRONMENT', made[0]!.environment)).toHaveLength(1);
  });

  it('L2, L5, K-C10: a new status writes the history, a repeated one has no further effect, and a final one stays', async () => {
    const here = scene();
    const run = await here.makeRun();
    const made = await make(here, run, { status: 'INITIALIZING', phase: 'booting' });
    const { id } = made;
    const become = (fields: Partial<EnvironmentUpsert>) => make(here, run, { id, ...fields });
    const up = { status: 'RUNNING', message: 'up', phase: 'ready', metadataJson: '{"ip":1}' } as const;
    const started = await become({ ...up, externalId: 'gbox-7' });
    expect(started).toMatchObject({ status: 'RUNNING', statusMessage: 'up', phase: 'ready', externalId: 'gbox-7' });
    expect(await become(up)).toEqual(started);
    expect(await become({ status: 'PAUSED' })).toMatchObject({ statusMessage: '', phase: 'ready' });
    const again = await become({ status: 'RUNNING' });
    expect(again).toMatchObject({ externalId: 'gbox-7', startTime: started.startTime, endTime: undefined });
    expect(await become({ message: 'busy' })).toMatchObject({ status: 'RUNNING', statusMessage: 'busy' });
    const ended = await become({ status: 'COMPLETED', message: 'done' });
    expect(ended.endTime).toBeDefined();
    for (const same of [
      { status: 'COMPLETED', message: 'done' },
      { status: 'COMPLETED' },
      { message: 'done' },
    ] as const) {
      expect(await become(same)).toEqual(ended);
    }
    for (const other of [{ status: 'COMPLETED', message: 'otherwise' }, { message: '' }] as const) {
      expect(await reason(become(other))).toBe('RESULT_CONFLICT');
    }
    for (const status of STATUSES.filter((each) => each !== 'COMPLETED')) {
      expect(await refusalOf(become({ status, type: 'x' }))).toMatchObject({
        reason: 'ILLEGAL_TRANSITION',
        metadata: { status: 'COMPLETED', requested_status: status },
      });
    }
    expect(await find(here, id)).toEqual(ended);
    expect(await become({ externalId: 'gbox-9' })).toMatchObject({ status: 'COMPLETED', endTime: ended.endTime });
    const history = await here.history('ENVIRONMENT', made);
    expect(history.map(({ ordinal, oldStatus, newStatus }) => [ordinal, oldStatus, newStatus])).toEqual([
      [0n, undefined, 'INITIALIZING'],
      [1n, 'INITIALIZING', 'RUNNING'],
      [2n, 'RUNNING', 'PAUSED'],
      [3n, 'PAUSED', 'RUNNING'],
      [4n, 'RUNNING', 'COMPLETED'],
    ]);
    expect(history[1]).toMatchObject({ message: 'up', phase: 'ready', metadataJson: '{"ip":1}', actor: 'tester' });
  });

  it('C-38: environments are listed by run, rollout, attempt, id and status, newest first; one may serve several rollouts', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    const made = [];
    for (const status of ['RUNNING', 'PENDING', 'RUNNING'] as const) made.push(await make(here, run, { status }));
    const [a, b, c] = made.map(({ id }) => id);
    const [one = '', other = ''] = await here.queue(stage, 2);
    await here.claims({ count: 2 });
    const use = (id: string, environmentIds: string[]) =>
      here.store.updateRollout(here.caller, id, undefined, { environmentIds });
    await use(one, [`${a}`, `${b}`]);
    await use(other, [`${b}`]);
    const list = async (filter: EnvironmentFilter, page: Page<bigint> = ALL) =>
      (await here.store.listEnvironments(here.namespace, filter, page)).map(({ id }) => id);
    expect(await list({ runId: run.id })).toEqual([c, b, a]);
    expect(await list({ runId: run.id, statuses: ['RUNNING'] })).toEqual([c, a]);
    expect(await list({ runId: run.id, statuses: [] })).toEqual([]);
    expect(await list({ runId: run.id }, { limit: 2, after: made[2]!.key })).toEqual([b, a]);
    expect(await list({ rolloutId: one })).toEqual([b, a]);
    expect(await list({ rolloutId: one, statuses: ['PENDING'] })).toEqual([b]);
    expect(await list({ rolloutId: other })).toEqual([b]);
    expect(await list({ rolloutId: one, attempt: 1 })).toEqual([b, a]);
    expect(await list({ rolloutId: one, attempt: 2 })).toEqual([]);
    expect(await list({ ids: [`${a}`, `${c}`, randomUUID()] })).toEqual([c, a]);
    expect(await list({ rolloutId: one, ids: [`${a}`, `${c}`], runId: run.id })).toEqual([a]);
    expect((await here.record(one)).environmentIds.toSorted()).toEqual([a, b].toSorted());
    expect(await reason(list({ runId: randomUUID() }))).toBe('RUN_NOT_FOUND');
    expect(await reason(list({ rolloutId: randomUUID() }))).toBe('ROLLOUT_NOT_FOUND');
    const foreign = here.store.listEnvironments('other', { rolloutId: one }, ALL);
    expect(await reason(foreign)).toBe('ROLLOUT_NOT_FOUND');
  });

  it('B4: it is deleted with its run', async () => {
    const here = scene();
    const run = await here.makeRun();
    const made = await make(here, run, { status: 'RUNNING' });
    await here.store.deleteRun(here.namespace, run.id, 'REFUSE');
    expect(await find(here, made.id)).toBeUndefined();
    expect(await reason(here.history('ENVIRONMENT', made))).toBe('ENVIRONMENT_NOT_FOUND');
  });
});
