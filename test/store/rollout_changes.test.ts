import { expect, it } from 'vitest';
import { groupStatus } from '../../src/domain/rollout.ts';
import type { Run } from '../../src/domain/run.ts';
import type { ChangeCursor, ChangedIn, Horizon } from '../../src/store/contract/run.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { newGroup, RolloutScene } from './rollout_scene.ts';
import { SILENT } from './run_scene.ts';
import { statementsOf } from './statement_count.ts';

describeStore('changes of groups and rollouts', (on) => {
  const scene = () => new RolloutScene(on.store);
  const page = (limit = 1000, after?: ChangeCursor) => ({ limit, after });
  const horizonOf = async (here: RolloutScene, run: Run): Promise<Horizon> => {
    const read = await here.store.readRunChanges(here.namespace, run.id, undefined, true);
    if (read === undefined) throw new Error('the run was not found');
    return read.horizon;
  };
  const changed = async (here: RolloutScene, run: Run, where: Partial<ChangedIn>) => {
    const place = { since: undefined, allStages: false, ...where };
    const groups = await here.store.readChangedGroups(here.namespace, run.key, place, page());
    const rollouts = await here.store.readChangedRollouts(here.namespace, run.key, place, page());
    const all = [...groups.rows, ...rollouts.groups].map((group) => [group.key, group] as const);
    return { groups: [...new Map(all).values()], rollouts: rollouts.rows };
  };

  it('M5: the snapshot contains open stages, or all stages; in BASIC view, in pages', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    const closed = await here.stage(run, { number: 1n, status: 'RUNNING' });
    const many = [0n, 1n, 2n].map((groupNumber) => ({ groupNumber, number: 0n, inputJson: '{"x":1}' }));
    await here.makeRollouts(stage, many);
    await here.makeRollouts(closed, many.slice(0, 1));
    await here.store.moveStage(here.caller, closed.id, 'complete', SILENT);
    const [open, all] = [await changed(here, run, {}), await changed(here, run, { allStages: true })];
    expect([open.groups.length, open.rollouts.length]).toEqual([3, 3]);
    expect([all.groups.length, all.rollouts.length]).toEqual([4, 4]);
    expect(all.rollouts[0]?.inputJson).toBe('');
    expect(all.groups[0]?.statistics.pending).toBe(1n);
    const where = { since: undefined, allStages: true };
    const first = await here.store.readChangedRollouts(here.namespace, run.key, where, page(3));
    const rest = await here.store.readChangedRollouts(here.namespace, run.key, where, page(3, first.next));
    expect([...first.rows, ...rest.rows]).toEqual(all.rollouts);
    expect(rest.next).toBeUndefined();
    const some = await here.store.readChangedGroups(here.namespace, run.key, where, page(3));
    const last = await here.store.readChangedGroups(here.namespace, run.key, where, page(3, some.next));
    expect([...some.rows, ...last.rows]).toEqual(all.groups);
    expect((await here.store.readChangedGroups('other', run.key, where, page())).rows).toEqual([]);
    expect((await here.store.readChangedRollouts('other', run.key, where, page())).rows).toEqual([]);
  });

  it('M5, L4: after a horizon every later change is returned, whatever caused it; a group changes with its rollouts', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    const other = await here.place();
    await here.queue(stage, 2);
    await here.queue(stage, 2, { groupNumber: 1n });
    await here.queue(other.stage, 1);
    // Some changes may be returned twice. A change is new if its revision was not seen before.
    const seen = new Set<string>();
    const unseen = <T extends { readonly id: string; readonly revision: bigint }>(changes: readonly T[]) =>
      changes.filter(({ id, revision }) => !seen.has(`${id} ${revision}`));
    const after = async (work: () => Promise<unknown>) => {
      const before = await changed(here, run, { allStages: true });
      for (const { id, revision } of [...before.groups, ...before.rollouts]) seen.add(`${id} ${revision}`);
      const since = await horizonOf(here, run);
      await work();
      const changes = await changed(here, run, { since });
      const [groups, rollouts] = [unseen(changes.groups), unseen(changes.rollouts)];
      return [groups.map(({ number }) => number), rollouts.map(({ group, number }) => `${group.number}/${number}`)];
    };
    let claim = await here.claimOne({ stageId: other.stage.id });
    expect(await after(async () => here.complete(claim))).toEqual([[], []]);
    expect(await after(async () => (claim = await here.claimOne({ runId: run.id })))).toEqual([[0n], ['0/0']]);
    expect(await after(() => here.start(claim))).toEqual([[0n], ['0/0']]);
    const { group } = claim.rollout;
    const batch = newGroup(stage.id, { number: group.number, batch: 1n });
    expect(await after(() => here.store.upsertGroup(here.namespace, batch))).toEqual([[0n], []]);
    expect(await after(() => here.store.upsertGroup(here.namespace, batch))).toEqual([[], []]);
    expect(await after(() => here.complete(claim))).toEqual([[0n], ['0/0']]);
    const override = { success: true, reason: 'seen', actor: '' };
    expect(
      await after(() => here.store.overrideValidation(here.caller, claim.rollout.id, undefined, override)),
    ).toEqual([[0n], ['0/0']]);
    expect(await after(() => here.queue(stage, 3, { groupNumber: 1n }))).toEqual([[1n], ['1/2']]);
    expect(await after(() => here.store.upsertGroup(here.namespace, newGroup(stage.id, { number: 9n })))).toEqual([
      [9n],
      [],
    ]);
    // Includes terminal stages: they can still change.
    await here.store.moveStage(here.caller, stage.id, 'complete', SILENT);
    const [waiting] = await here.rollouts({ stageId: stage.id }, { statuses: ['PENDING'] });
    expect(await after(() => here.cancel(waiting!.id))).toEqual([[0n], ['0/1']]);
    const [first] = (await changed(here, run, { allStages: true })).groups;
    expect(groupStatus(first!.statistics)).toBe('COMPLETED');
  });

  it('M5: live rollouts, and only these, are read by key in pages, with current turns and reward', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    const other = await here.place();
    await here.queue(other.stage, 1);
    await here.claimOne({ stageId: other.stage.id });
    await here.queue(stage, 6);
    const claims = await here.claims({ stageId: stage.id, count: 5 });
    const [ended, released, ...live] = claims;
    await here.complete(ended!);
    await here.release({ id: released!.rollout.id, attempt: 1 });
    await here.start(live[1]!);
    await here.append(live[0]!.trajectory, [wordStep(0n, 'root'), wordStep(1n, 'a', { reward: 2 })]);
    const read = (limit: number, after?: bigint) =>
      here.store.readLiveRollouts(here.namespace, run.key, { limit, after });
    const all = await read(10);
    expect(all.map(({ id }) => id)).toEqual(live.map(({ rollout }) => rollout.id));
    expect(all[0]).toMatchObject({ turns: 1n, reward: 2, status: 'INITIALIZING', inputJson: '' });
    expect([...(await read(2)), ...(await read(2, all[1]!.key))]).toEqual(all);
    expect(await read(2, all[2]!.key)).toEqual([]);
    expect(await here.store.readLiveRollouts('other', run.key, { limit: 10, after: undefined })).toEqual([]);
  });

  it('K-C6: a read of changes takes the same statements for one change and for a hundred', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    const since = await horizonOf(here, run);
    const cost = () => statementsOf(on.engine, () => changed(here, run, { since }));
    await here.queue(stage, 1);
    await cost();
    const one = await cost();
    const many = Array.from({ length: 100 }, (_, i) => ({ groupNumber: BigInt(i), number: 1n }));
    await here.makeRollouts(stage, many);
    expect((await changed(here, run, { since })).rollouts).toHaveLength(101);
    expect(await cost()).toBe(one);
  });
});
