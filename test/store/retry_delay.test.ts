import { expect, it } from 'vitest';
import type { Claim } from '../../src/store/contract/rollout.ts';
import { claimed, describeClaims, type RolloutScene, tokenOf } from './rollout_scene.ts';
import { letPass } from './time_travel.ts';

const S = 1_000_000_000n;

describeClaims('the delay before the next attempt', (scenes, on) => {
  const queued = async (fields: { readonly retryDelayMs: number; readonly maxAttempts?: number }, count = 1) => {
    const scene = scenes();
    const { run, stage } = await scene.place();
    const ids = await scene.queue(stage, count, fields);
    return { scene, run, stage, ids };
  };

  const claimable = async (scene: RolloutScene, { rollout: { id } }: Claim) => {
    const { claimableTime, updateTime } = await scene.rollout(id);
    return claimableTime === undefined ? undefined : claimableTime - updateTime;
  };

  it('Q3: a released rollout cannot be claimed before its delay, which doubles with each attempt', async () => {
    const { scene } = await queued({ retryDelayMs: 100_000, maxAttempts: 9 });
    for (const seconds of [100, 200, 300, 300]) {
      const claim = await scene.claimOne();
      expect(claim.rollout.claimableTime, 'a rollout that is held').toBeUndefined();
      await scene.release(tokenOf(claim));
      expect(await claimable(scene, claim)).toBe(BigInt(seconds) * S);
      await letPass(on.sql, scene, seconds - 20);
      expect(await scene.claims(), 'too early').toEqual([]);
      await letPass(on.sql, scene, 21);
    }
    expect((await scene.claimOne()).rollout.attempt).toBe(5);
  });

  it('Q3: a rollout whose lease expired is delayed as well', async () => {
    const { scene } = await queued({ retryDelayMs: 100_000 });
    const claim = await scene.claimOne({ leaseMs: 60_000 });
    await letPass(on.sql, scene, 61);
    await on.store.sweepLeases(100);
    expect(await claimable(scene, claim)).toBe(100n * S);
    expect(await scene.claims()).toEqual([]);
    await letPass(on.sql, scene, 101);
    expect(await scene.claims()).toHaveLength(1);
  });

  it('Q5: a delayed rollout is skipped, and later claimed at its place in the queue', async () => {
    const { scene, stage, ids } = await queued({ retryDelayMs: 100_000 }, 4);
    const [first, second] = await scene.claims({ count: 2 });
    await scene.release(tokenOf(first!));
    await scene.release(tokenOf(second!));
    const [third] = await scene.claims();
    expect(third?.rollout.id).toBe(ids[2]);
    await scene.makeRollouts(stage, [{ number: 9n }]);
    await letPass(on.sql, scene, 101);
    const order = (await scene.claims({ count: 9 })).map(({ rollout }) => rollout.id);
    expect(order.slice(0, 3)).toEqual([ids[0], ids[1], ids[3]]);
    expect(order).toHaveLength(4);
  });

  it('Q2: a claim that finds only delayed rollouts returns when the next one can be claimed, and is not drained', async () => {
    const { scene, run, stage } = await queued({ retryDelayMs: 100_000 }, 2);
    const outcomeOf = async (fields: Parameters<typeof scene.request>[0] = {}) => {
      return claimed((await on.store.claimRollouts([scene.request(fields)]))[0]);
    };
    const [first, second] = await scene.claims({ count: 2 });
    await scene.release(tokenOf(second!));
    await letPass(on.sql, scene, 50);
    await scene.release(tokenOf(first!));
    const { claims, drained, nextInMs } = await outcomeOf();
    expect([claims, drained]).toEqual([[], false]);
    expect(nextInMs).toBeGreaterThan(0);
    expect(nextInMs).toBeLessThanOrEqual(50_000);
    expect((await outcomeOf({ labels: new Map([['a', 'b']]) })).nextInMs, 'none fits').toBeUndefined();
    expect((await outcomeOf({ minPriority: 1 })).nextInMs, 'none fits').toBeUndefined();
    await scene.move(run, 'pause');
    expect((await outcomeOf()).nextInMs, 'none can be claimed then').toBeUndefined();
    await scene.move(run, 'resume');
    await scene.makeRollouts(stage, [{ number: 5n }]);
    expect(await outcomeOf(), 'something else').toMatchObject({ claims: [{}], nextInMs: undefined });
  });

  it('Q3: without a delay a rollout can be claimed at once', async () => {
    const { scene } = await queued({ retryDelayMs: 0 });
    await scene.release(tokenOf(await scene.claimOne()));
    expect((await scene.claimOne()).rollout.attempt).toBe(2);
  });

  it('Q3: RetryRollout ignores the delay', async () => {
    const { scene } = await queued({ retryDelayMs: 100_000, maxAttempts: 1 });
    const claim = await scene.claimOne();
    expect(await scene.release(tokenOf(claim))).toMatchObject({ status: 'FAILED', claimableTime: undefined });
    const retried = await scene.retry(tokenOf(claim));
    expect(retried.claimableTime).toBe(retried.updateTime);
    expect((await scene.claimOne()).rollout.attempt).toBe(2);
  });

  it('Q3: one worker with a broken environment cannot use up the attempts of many rollouts', async () => {
    const { scene, stage } = await queued({ retryDelayMs: 1000 }, 20);
    for (let claims = await scene.claims(); claims.length > 0; claims = await scene.claims()) {
      await scene.release(tokenOf(claims[0]!));
      // Runs without delays, so that the result does not depend on the speed of the machine.
      await on.sql.rows(`update rollouts set claimable_time = '2100-01-01T00:00:00.000000Z' where attempt > 0`);
    }
    const rollouts = await scene.rollouts({ stageId: stage.id });
    expect(rollouts.map(({ status, attempt }) => `${status} ${attempt}`)).toEqual(Array(20).fill('PENDING 1'));
  });

  it('a refunded attempt does not count: it does not delay the next one and does not use up max_attempts', async () => {
    const { scene, ids } = await queued({ retryDelayMs: 100_000, maxAttempts: 2 });
    for (const attempt of [1, 2, 3]) {
      const claim = await scene.claimOne();
      expect(claim.rollout.attempt, 'the token of the lease increases').toBe(attempt);
      const released = await scene.release(tokenOf(claim), { refundAttempt: true, message: 'preempted' });
      expect(released).toMatchObject({ status: 'PENDING', attempt, refundedAttempts: attempt });
    }
    const counted = await scene.claimOne();
    await scene.release(tokenOf(counted));
    expect(await claimable(scene, counted), 'the first attempt that counts').toBe(100n * S);
    await letPass(on.sql, scene, 101);
    const refunded = await scene.claimOne();
    await scene.release(tokenOf(refunded), { refundAttempt: true });
    expect(await claimable(scene, refunded)).toBe(0n);
    const last = await scene.claimOne();
    const { attempts } = await scene.record(ids[0]!);
    expect(attempts.map(({ status }) => status)).toEqual([...Array(5).fill('FAILED'), 'INITIALIZING']);
    expect(await scene.release(tokenOf(last))).toMatchObject({ status: 'FAILED', attempt: 6, refundedAttempts: 4 });
    const retried = await scene.retry(tokenOf(last));
    expect(retried, 'one counted attempt more').toMatchObject({ status: 'PENDING', maxAttempts: 3 });
  });

  it('a repeated refund changes nothing', async () => {
    const { scene } = await queued({ retryDelayMs: 0 });
    const token = tokenOf(await scene.claimOne());
    const first = await scene.release(token, { refundAttempt: true });
    expect(await scene.release(token, { refundAttempt: true })).toEqual(first);
    expect(first.refundedAttempts).toBe(1);
  });
});
