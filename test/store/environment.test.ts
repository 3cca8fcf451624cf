import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Status } from '../../src/domain/lifecycle.ts';
import type { IdempotencyKey } from '../../src/store/contract/idempotency.ts';
import type { Page } from '../../src/store/contract/page.ts';
import type { MoveDetails } from '../../src/store/contract/run.ts';
import { describeStore } from './on_store.ts';
import { newEnvironment, RolloutScene } from './rollout_scene.ts';
import { SILENT } from './run_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';

type Owner = { readonly runId: string } | { readonly rolloutId: string };

const ALL = { limit: 1000, after: undefined };

describeStore('environments', (on) => {
  const scene = () => new RolloutScene(on.store);
  const make = (here: RolloutScene, run: { readonly id: string }, fields = {}, key?: IdempotencyKey) =>
    here.store.createEnvironment(here.caller, newEnvironment(run.id, fields), key);
  const reason = (call: Promise<unknown>) => refusalOf(call).then((refusal) => refusal.reason);

  it('C-38: an environment keeps the values it was created with', async () => {
    const here = scene();
    const run = await here.makeRun();
    const labels = new Map([['zone', 'a']]);
    const fields = { type: 'android', externalId: 'gbox-1', labels, configJson: '{"api": 34}', phase: 'booting' };
    const made = await make(here, run, fields);
    expect(made).toMatchObject({ run: { id: run.id }, status: 'PENDING', statusMessage: '', ...fields });
    expect([made.startTime, made.endTime]).toEqual([undefined, undefined]);
    expect(await here.store.getEnvironment(here.namespace, made.id)).toEqual(made);
    expect(await here.store.getEnvironment(here.namespace, randomUUID())).toBeUndefined();
    expect(await here.store.getEnvironment('other', made.id)).toBeUndefined();
    expect((await make(here, run, { status: 'RUNNING' })).startTime).toBeDefined();
    expect(await reason(make(here, run, { id: made.id }))).toBe('ENVIRONMENT_EXISTS');
    expect(await reason(make(here, { id: randomUUID() }))).toBe('RUN_NOT_FOUND');
    expect(await reason(make(scene(), run))).toBe('RUN_NOT_FOUND');
  });

  it('ID1: repeated requests create one environment, also when twenty race', async () => {
    const here = scene();
    const run = await here.makeRun();
    const key = { rpc: 'CreateEnvironment', requestId: 'r', requestDigest: 'd' };
    const made = await Promise.all(Array.from({ length: 20 }, () => make(here, run, {}, key)));
    expect(new Set(made.map(({ id }) => id)).size).toBe(1);
    expect((await countRows(on.sql, here.namespace)).environments).toBe(1);
    expect(await reason(make(here, run, {}, { ...key, requestDigest: 'e' }))).toBe('REQUEST_ID_REUSED');
    await here.store.deleteRun(here.namespace, run.id, 'REFUSE');
    expect(await reason(make(here, run, {}, key))).toBe('ENVIRONMENT_NOT_FOUND');
  });

  it('L2, L5, K-C10: verbs change its status and write its history; a repeated verb has no further effect', async () => {
    const here = scene();
    const run = await here.makeRun();
    const made = await make(here, run, { status: 'INITIALIZING', phase: 'booting' });
    const move = (
      verb: Parameters<typeof here.store.moveEnvironment>[2],
      details: Partial<MoveDetails> = {},
      externalId?: string,
    ) => here.store.moveEnvironment(here.caller, made.id, verb, { ...SILENT, ...details }, externalId);
    const started = await move('start', { message: 'up', phase: 'ready', metadataJson: '{"ip":1}' }, 'gbox-7');
    expect(started).toMatchObject({ status: 'RUNNING', statusMessage: 'up', phase: 'ready', externalId: 'gbox-7' });
    expect(await move('start', { message: 'again' }, 'gbox-8')).toEqual(started);
    await move('pause');
    expect(await move('resume')).toMatchObject({
      status: 'RUNNING',
      externalId: 'gbox-7',
      startTime: started.startTime,
    });
    const ended = await move('complete', { message: 'done' });
    expect(ended.endTime).toBeDefined();
    expect(await move('complete', { message: 'done' })).toEqual(ended);
    expect(await reason(move('complete', { message: 'otherwise' }))).toBe('RESULT_CONFLICT');
    expect(await refusalOf(move('pause'))).toMatchObject({
      reason: 'ILLEGAL_TRANSITION',
      message: 'PauseEnvironment requires an environment that is RUNNING; this one is COMPLETED.',
    });
    const history = await here.history('ENVIRONMENT', made);
    expect(history.map(({ ordinal, oldStatus, newStatus }) => [ordinal, oldStatus, newStatus])).toEqual([
      [0n, undefined, 'INITIALIZING'],
      [1n, 'INITIALIZING', 'RUNNING'],
      [2n, 'RUNNING', 'PAUSED'],
      [3n, 'PAUSED', 'RUNNING'],
      [4n, 'RUNNING', 'COMPLETED'],
    ]);
    expect(history[1]).toMatchObject({ message: 'up', phase: 'ready', metadataJson: '{"ip":1}', actor: 'tester' });
    const missing = here.store.moveEnvironment(here.caller, randomUUID(), 'fail', SILENT, undefined);
    expect(await reason(missing)).toBe('ENVIRONMENT_NOT_FOUND');
    const foreign = here.store.moveEnvironment(scene().caller, made.id, 'fail', SILENT, undefined);
    expect(await reason(foreign)).toBe('ENVIRONMENT_NOT_FOUND');
  });

  it('C-38: environments are listed by run, rollout and status, newest first; one may serve several rollouts', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    const made = [];
    for (const status of ['RUNNING', 'PENDING', 'RUNNING'] as const) made.push(await make(here, run, { status }));
    const [a, b, c] = made.map(({ id }) => id);
    const [one = '', other = ''] = await here.queue(stage, 2);
    await here.claims({ count: 2 });
    const use = (id: string, environmentIds: string[]) =>
      here.store.updateRollout(here.namespace, id, undefined, { environmentIds });
    await use(one, [`${a}`, `${b}`]);
    await use(other, [`${b}`]);
    const list = async (of: Owner, statuses?: readonly Status[], page: Page<bigint> = ALL) =>
      (await here.store.listEnvironments(here.namespace, of, statuses, page)).map(({ id }) => id);
    expect(await list({ runId: run.id })).toEqual([c, b, a]);
    expect(await list({ runId: run.id }, ['RUNNING'])).toEqual([c, a]);
    expect(await list({ runId: run.id }, [])).toEqual([]);
    expect(await list({ runId: run.id }, undefined, { limit: 2, after: made[2]!.key })).toEqual([b, a]);
    expect(await list({ rolloutId: one })).toEqual([b, a]);
    expect(await list({ rolloutId: one }, ['PENDING'])).toEqual([b]);
    expect(await list({ rolloutId: other })).toEqual([b]);
    expect((await here.record(one)).environmentIds.toSorted()).toEqual([a, b].toSorted());
    expect(await reason(list({ runId: randomUUID() }))).toBe('RUN_NOT_FOUND');
    expect(await reason(list({ rolloutId: randomUUID() }))).toBe('ROLLOUT_NOT_FOUND');
    const foreign = here.store.listEnvironments('other', { rolloutId: one }, undefined, ALL);
    expect(await reason(foreign)).toBe('ROLLOUT_NOT_FOUND');
  });

  it('B4: it is deleted with its run', async () => {
    const here = scene();
    const run = await here.makeRun();
    const made = await make(here, run, { status: 'RUNNING' });
    await here.store.deleteRun(here.namespace, run.id, 'REFUSE');
    expect(await here.store.getEnvironment(here.namespace, made.id)).toBeUndefined();
    const move = here.store.moveEnvironment(here.caller, made.id, 'fail', SILENT, undefined);
    expect(await reason(move)).toBe('ENVIRONMENT_NOT_FOUND');
    expect(await reason(here.history('ENVIRONMENT', made))).toBe('ENVIRONMENT_NOT_FOUND');
  });
});
