import { expect, it } from 'vitest';
import type { Claim } from '../../src/store/contract/rollout.ts';
import { sha256 } from '../support/steps.ts';
import { claimed, describeClaims } from './rollout_scene.ts';

describeClaims('claims that do not fit into one answer', (scenes) => {
  const fresh = async () => {
    const scene = scenes();
    return { scene, ...(await scene.place()) };
  };
  const numbers = (claims: readonly Claim[]) => claims.map(({ rollout }) => Number(rollout.number));

  it('Q2: return fewer rollouts; the others stay PENDING without an attempt, for the next request', async () => {
    const { scene, stage } = await fresh();
    await scene.task('t', 5n);
    await scene.validator('t', 'state');
    await scene.queue(stage, 5, { taskId: 't', inputJson: '{"seed":1}' });
    const offered: Claim[][] = [];
    const countFitting = (claims: readonly Claim[]) => {
      offered.push([...claims]);
      return 2;
    };
    const key = { rpc: 'ClaimRollouts', requestId: 'k', requestDigest: sha256('one') };
    const first = await scene.claims({ count: 4, countFitting, key });
    expect(numbers(first)).toEqual([0, 1]);
    // The measured size is that of the answer.
    expect(offered).toHaveLength(1);
    expect(numbers(offered[0]!)).toEqual([0, 1, 2, 3]);
    expect(offered[0]!.slice(0, 2)).toEqual(first);
    const pending = await scene.rollouts({ stageId: stage.id }, { statuses: ['PENDING'] });
    expect(pending.map(({ number, attempt, trajectoryId }) => [number, attempt, trajectoryId])).toEqual(
      [2n, 3n, 4n].map((number) => [number, 0, '']),
    );
    expect(numbers(await scene.claims({ count: 4, countFitting, key }))).toEqual([0, 1]);
    expect(numbers(await scene.claims({ count: 4, countFitting }))).toEqual([2, 3]);
    expect(numbers(await scene.claims({ count: 4, countFitting }))).toEqual([4]);
  });

  it('Q2: rollouts that do not fit into one answer go to the next request of the same transaction', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 6);
    const requests = [3, 1, 3].map((count) =>
      scene.request({ count, countFitting: ({ length }) => Math.min(2, length) }),
    );
    const outcomes = (await scene.store.claimRollouts(requests)).map(claimed);
    expect(outcomes.map(({ claims }) => numbers(claims))).toEqual([[0, 1], [2], [3, 4]]);
    expect(numbers(await scene.claims())).toEqual([5]);
  });
});
