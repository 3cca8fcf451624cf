import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { ClaimRequest } from '../../src/store/contract/rollout.ts';
import { sha256 } from '../support/steps.ts';
import { claimed, describeClaims, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';

describeClaims('repeated claims', (scenes, on) => {
  const fresh = async () => {
    const scene = scenes();
    return { scene, ...(await scene.place()) };
  };
  const keyed = (requestId: string, request = 'one') => ({
    key: { rpc: 'ClaimRollouts', requestId, requestDigest: sha256(request) },
  });

  it('ID1, Q2: a repeated request returns the claims that it was granted, in their current state', async () => {
    const { scene, stage } = await fresh();
    await scene.task('t', 5n);
    await scene.validator('t', 'state');
    await scene.queue(stage, 5, { taskId: 't' });
    const first = await scene.claims({ count: 3, ...keyed('k') });
    expect(await scene.claims({ count: 3, ...keyed('k') })).toEqual(first);
    await scene.start(first[1]!, { phase: 'agent' });
    const again = await scene.claims({ count: 3, ...keyed('k') });
    expect(again.map(({ rollout }) => rollout.status)).toEqual(['INITIALIZING', 'RUNNING', 'INITIALIZING']);
    expect(again[1]?.rollout).toEqual(await scene.rollout(first[1]!.rollout.id));
    expect((await scene.rollouts({ stageId: stage.id }, { statuses: ['PENDING'] })).length).toBe(2);
  });

  it('Q2: a replayed claim returns only attempts that are still live', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 4);
    const [a, b, c, d] = await scene.claims({ count: 4, ...keyed('k') });
    await scene.complete(a!);
    await scene.release(tokenOf(b!));
    expect((await scene.claimOne({ workerId: 'other' })).rollout.id).toBe(b?.rollout.id);
    await scene.delete(c!.trajectory);
    expect(await scene.claims({ count: 4, ...keyed('k') })).toEqual([d]);
  });

  it('ID1: a different request under the same key is refused, without effect on others', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 3);
    await scene.claims(keyed('k'));
    expect((await refusalOf(scene.claims(keyed('k', 'two')))).reason).toBe('REQUEST_ID_REUSED');
    const outcomes = await scene.store.claimRollouts([
      scene.request(keyed('k', 'two')),
      scene.request(keyed('l', 'one')),
      scene.request(keyed('l', 'two')),
      scene.request(),
    ]);
    expect(outcomes).toMatchObject([
      { kind: 'refused', error: { reason: 'REQUEST_ID_REUSED' } },
      { kind: 'claimed', claims: [{}] },
      { kind: 'refused', error: { reason: 'REQUEST_ID_REUSED' } },
      { kind: 'claimed', claims: [{}] },
    ]);
  });

  it('Q2: an empty answer is not stored: the same key may claim something later', async () => {
    const { scene, stage } = await fresh();
    expect(await scene.claims(keyed('k'))).toEqual([]);
    expect((await countRows(on.sql, scene.namespace)).requests).toBe(0);
    await scene.queue(stage, 1);
    const claims = await scene.claims(keyed('k'));
    expect(claims).toHaveLength(1);
    expect(await scene.claims(keyed('k'))).toEqual(claims);
  });

  it('ID1: twenty concurrent requests with one key, in one group and apart, all get the same claim', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 30);
    const request = (): ClaimRequest => scene.request({ count: 2, ...keyed('k') });
    const outcomes = await Promise.all(
      Array.from({ length: 10 }, () => scene.store.claimRollouts([request(), scene.request(), request()])),
    );
    const same = outcomes.flatMap(([a, , b]) => [a, b]).map((outcome) => claimed(outcome).claims);
    expect(same[0]).toHaveLength(2);
    for (const claims of same) expect(claims).toEqual(same[0]);
    const others = outcomes.flatMap(([, other]) => claimed(other).claims.map(({ rollout }) => rollout.id));
    expect(new Set(others).size).toBe(10);
    const live = await scene.rollouts({ stageId: stage.id }, { statuses: ['INITIALIZING'] });
    expect(live).toHaveLength(12);
  });

  it('ID1, N1: a key is scoped by namespace and RPC', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 2);
    const other = await fresh();
    await other.scene.queue(other.stage, 1);
    await scene.createWith([], {});
    await scene.create({ id: randomUUID() }, { rpc: 'CreateTrajectory', requestId: 'k', requestDigest: sha256('x') });
    expect(await scene.claims(keyed('k'))).toHaveLength(1);
    expect(await other.scene.claims(keyed('k'))).toHaveLength(1);
    expect((await scene.claims({ key: { rpc: 'Other', requestId: 'k', requestDigest: sha256('y') } })).length).toBe(1);
  });

  it('N1: a key reaches no claim of another namespace, even if both read alike when joined by /', async () => {
    const { scene, stage } = await fresh();
    const other = new RolloutScene(scene.store, `${scene.namespace}/ClaimRollouts`);
    const { stage: otherStage } = await other.place();
    const [own] = await scene.queue(stage, 1);
    const [others] = await other.queue(otherStage, 1);
    const requests = () => [other.request(keyed('z')), scene.request(keyed('ClaimRollouts/z'))];
    for (const time of ['claimed', 'replayed']) {
      const granted = (await scene.store.claimRollouts(requests())).map((outcome) => claimed(outcome).claims);
      const ids = granted.map((claims) => claims.map(({ rollout }) => rollout.id));
      expect(ids, time).toEqual([[others], [own]]);
    }
  });
});
