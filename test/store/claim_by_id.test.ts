import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { ClaimRequest } from '../../src/store/contract/rollout.ts';
import { describeStore } from './on_store.ts';
import { claimed, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';

describeStore('claims of rollouts by id', (on) => {
  const fresh = async (count = 6) => {
    const scene = new RolloutScene(on.store);
    const { run, stage } = await scene.place();
    const ids = await scene.queue(stage, count);
    const outcomeOf = async (fields: Partial<ClaimRequest> & { readonly count?: number }) => {
      return claimed((await on.store.claimRollouts([scene.request({ count: 100, ...fields })]))[0]);
    };
    const claim = async (
      rolloutIds: readonly string[],
      fields: Partial<ClaimRequest> & { readonly count?: number } = {},
    ) => (await outcomeOf({ rolloutIds, ...fields })).claims.map(({ rollout }) => rollout.id);
    return { scene, run, stage, ids: ids as [string, string, string, string, string, string], outcomeOf, claim };
  };

  it('Q2, Q5: only the named rollouts are claimed, in the order of the queue, up to the maximum', async () => {
    const { scene, ids, claim } = await fresh();
    await scene.store.updateRollout(scene.caller, ids[4], undefined, { priority: 1 });
    expect(await claim([ids[1], ids[4], ids[3]], { count: 2 })).toEqual([ids[4], ids[1]]);
    expect(await claim([ids[1], ids[4], ids[3]])).toEqual([ids[3]]);
    expect(await claim([ids[1], ids[4], ids[3]])).toEqual([]);
    expect((await scene.claims({ count: 9 })).map(({ rollout }) => rollout.id)).toEqual([ids[0], ids[2], ids[5]]);
  });

  it('Q2: other filters apply too', async () => {
    const { scene, run, stage, ids, claim } = await fresh();
    const other = await scene.place();
    const [elsewhere = ''] = await scene.queue(other.stage, 1, { labels: new Map([['a', 'b']]), priority: 2 });
    const both = [ids[0], elsewhere];
    expect(await claim(both, { labels: new Map([['a', 'c']]) })).toEqual([]);
    expect(await claim(both, { minPriority: 3 })).toEqual([]);
    expect(await claim(both, { taskIds: ['unknown'] })).toEqual([]);
    expect(await claim([elsewhere], { stageId: stage.id })).toEqual([]);
    expect(await claim(both, { runId: run.id })).toEqual([ids[0]]);
    expect(await claim(both, { labels: new Map([['a', 'b']]), minPriority: 2, stageId: other.stage.id })).toEqual([
      elsewhere,
    ]);
  });

  it('Q2, Q4: rollouts that cannot be claimed now are skipped, and drained once nothing more can come', async () => {
    const { scene, run, ids, outcomeOf, claim } = await fresh();
    const [done, held, delayed, paused] = ids;
    const [first, second] = await scene.claims({ rolloutIds: [done, held], count: 2 });
    await scene.complete(first!);
    expect(await outcomeOf({ rolloutIds: [done] })).toMatchObject({ claims: [], drained: true });
    expect(await outcomeOf({ rolloutIds: [done, held] })).toMatchObject({ claims: [], drained: false });
    const late = '2100-01-01T00:00:00Z';
    await on.sql.rows(`update rollouts set claimable_time = '${late}' where id = '${delayed}'`);
    const waiting = await outcomeOf({ rolloutIds: [done, delayed] });
    expect(waiting).toMatchObject({ claims: [], drained: false, nextInMs: expect.any(Number) });
    expect((await outcomeOf({ rolloutIds: [done, held] })).nextInMs).toBeUndefined();
    await scene.move(run, 'pause');
    expect(await outcomeOf({ rolloutIds: [paused] })).toMatchObject({ claims: [], drained: false });
    await scene.move(run, 'resume');
    expect(await claim([paused, done])).toEqual([paused]);
    await scene.release(tokenOf(second!));
    expect(await claim([held])).toEqual([held]);
    await scene.move(run, 'cancel');
    expect(await outcomeOf({ rolloutIds: [delayed, held] })).toMatchObject({ claims: [], drained: true });
  });

  it('Q2: an unknown rollout is ROLLOUT_NOT_FOUND, without effect on other requests', async () => {
    const { scene, ids, claim } = await fresh();
    const nobody = randomUUID();
    expect(await refusalOf(claim([ids[0], nobody]))).toMatchObject({
      reason: 'ROLLOUT_NOT_FOUND',
      metadata: { rollout: nobody },
    });
    const foreign = await fresh();
    expect(await refusalOf(claim([foreign.ids[0]]))).toMatchObject({ reason: 'ROLLOUT_NOT_FOUND' });
    const [unknown, any, named] = await on.store.claimRollouts([
      scene.request({ rolloutIds: [nobody] }),
      scene.request(),
      scene.request({ rolloutIds: [ids[0], ids[1]] }),
    ]);
    expect(unknown).toMatchObject({ kind: 'refused' });
    const got = [any, named].flatMap((outcome) => claimed(outcome).claims.map(({ rollout }) => rollout.id));
    expect(new Set(got)).toEqual(new Set([ids[0], ids[1]]));
  });

  it('Q4, F2: of many concurrent claims of one rollout, one gets it', async () => {
    const { ids, claim } = await fresh();
    const answers = await Promise.all(Array.from({ length: 12 }, () => claim([ids[2]])));
    expect(answers.flat()).toEqual([ids[2]]);
  });

  it('ID1: a repeated request returns the claims that are still live', async () => {
    const { scene, ids } = await fresh();
    const key = { rpc: 'ClaimRollouts', requestId: 'r', requestDigest: 'd' };
    const request = { rolloutIds: [ids[3], ids[1]], count: 2, key };
    const first = await scene.claims(request);
    expect(first.map(({ rollout }) => rollout.id)).toEqual([ids[1], ids[3]]);
    await scene.complete(first[0]!);
    expect(await scene.claims(request)).toEqual([first[1]]);
  });
});
