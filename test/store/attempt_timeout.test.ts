import { expect, it } from 'vitest';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { letPass } from './time_travel.ts';

const S = 1_000_000_000n;

describeStore('the timeout of attempts', (on) => {
  const claimedWith = async (fields: { readonly attemptTimeoutMs: number; readonly maxAttempts?: number }) => {
    const scene = new RolloutScene(on.store);
    const { run, stage } = await scene.place();
    await scene.queue(stage, 1, fields);
    return { scene, run, claim: await scene.claimOne({ leaseMs: 600_000 }) };
  };

  it('Q3: an attempt that exceeds it is requeued despite heartbeats and appends, and its worker gets LEASE_LOST', async () => {
    const { scene, claim } = await claimedWith({ attemptTimeoutMs: 1_000_000 });
    await letPass(on.sql, scene, 900);
    await scene.heartbeat([tokenOf(claim)]);
    expect(await on.store.sweepLeases(100), 'it has 100 s left').toBe(0);
    await letPass(on.sql, scene, 110);
    await scene.append(claim.trajectory, [wordStep(0n, 'root')]);
    await scene.heartbeat([tokenOf(claim)]);
    expect(await on.store.sweepLeases(100)).toBe(1);
    const { rollout, attempts } = await scene.record(claim.rollout.id);
    expect(rollout).toMatchObject({ status: 'PENDING', attempt: 1, workerId: '', leaseEndTime: undefined });
    const message = 'attempt 1 took longer than its attempt_timeout of 1000 s';
    expect(attempts).toMatchObject([{ status: 'FAILED', message }]);
    expect(rollout.statusMessage).toBe(message);
    expect(await scene.trajectoryOf(claim)).toMatchObject({ status: 'FAILED', statusMessage: message });
    expect(await scene.heartbeat([tokenOf(claim)])).toMatchObject([{ kept: false }]);
    expect(await refusalOf(scene.complete(claim))).toMatchObject({ reason: 'LEASE_LOST' });
  });

  it('Q3: the next attempt starts with the whole timeout', async () => {
    const { scene, claim } = await claimedWith({ attemptTimeoutMs: 300_000 });
    expect(claim.rollout.leaseEndTime).toBe(claim.rollout.updateTime + 300n * S);
    await letPass(on.sql, scene, 310);
    expect(await on.store.sweepLeases(100)).toBe(1);
    const next = await scene.claimOne({ leaseMs: 600_000 });
    expect(next.rollout).toMatchObject({ attempt: 2, attemptTimeoutMs: 300_000 });
    expect(next.rollout.leaseEndTime).toBe(next.rollout.updateTime + 300n * S);
  });

  it('Q3: at max_attempts the rollout is FAILED', async () => {
    const { scene, claim } = await claimedWith({ attemptTimeoutMs: 10_000, maxAttempts: 1 });
    await letPass(on.sql, scene, 20);
    expect(await on.store.sweepLeases(100)).toBe(1);
    expect(await scene.rollout(claim.rollout.id)).toMatchObject({ status: 'FAILED', attempt: 1, success: false });
  });

  it('Q3: the lease end returned is never later than the end of the attempt, and a heartbeat returns the time left', async () => {
    const { scene, claim } = await claimedWith({ attemptTimeoutMs: 1_000_000 });
    const end = claim.rollout.updateTime + 1000n * S;
    expect(claim.rollout.leaseEndTime).toBe(claim.rollout.updateTime + 600n * S);
    const [state] = await scene.heartbeat([tokenOf(claim)], 3_600_000);
    expect(state?.kept).toBe(true);
    expect(state?.remainingMs).toBeLessThanOrEqual(1_000_000);
    expect((await scene.rollout(claim.rollout.id)).leaseEndTime).toBe(end);
    await scene.append(claim.trajectory, [wordStep(0n, 'root')]);
    expect((await scene.rollout(claim.rollout.id)).leaseEndTime).toBe(end);
    await letPass(on.sql, scene, 2000);
    const [late] = await scene.heartbeat([tokenOf(claim)]);
    expect(late, 'it was not swept yet').toMatchObject({ kept: true, remainingMs: 0 });
    await scene.complete(claim);
  });

  it('Q2: a result that arrives after it, but before the sweep, is accepted', async () => {
    const { scene, claim } = await claimedWith({ attemptTimeoutMs: 10_000 });
    await letPass(on.sql, scene, 50);
    expect(await scene.complete(claim)).toMatchObject({ status: 'COMPLETED' });
    expect(await on.store.sweepLeases(100)).toBe(0);
  });

  it('Q3: it does not count time while the run is paused', async () => {
    const { scene, run, claim } = await claimedWith({ attemptTimeoutMs: 1_000_000 });
    await letPass(on.sql, scene, 500);
    await scene.heartbeat([tokenOf(claim)], 3_600_000);
    await scene.move(run, 'pause');
    await letPass(on.sql, scene, 72000);
    await scene.move(run, 'resume');
    expect(await on.store.sweepLeases(100)).toBe(0);
    await letPass(on.sql, scene, 400);
    await scene.heartbeat([tokenOf(claim)], 3_600_000);
    expect(await on.store.sweepLeases(100), 'it has 100 s left').toBe(0);
    await letPass(on.sql, scene, 110);
    expect(await on.store.sweepLeases(100)).toBe(1);
    expect((await scene.record(claim.rollout.id)).attempts[0]?.message).toContain('attempt_timeout');
  });

  it('Q6: a rollout that exists conflicts with a create call that has another timeout or delay', async () => {
    const scene = new RolloutScene(on.store);
    const { stage } = await scene.place();
    const given = { attemptTimeoutMs: 5000, retryDelayMs: 7000 };
    await scene.queue(stage, 1, given);
    expect(await scene.makeRollouts(stage, [{ number: 0n, ...given }])).toMatchObject([{ existed: true }]);
    for (const [other, fields] of [
      [{ attemptTimeoutMs: undefined }, 'attempt_timeout'],
      [{ attemptTimeoutMs: 6000, retryDelayMs: 0 }, 'attempt_timeout,retry_delay'],
    ] as const) {
      const error = await refusalOf(scene.makeRollouts(stage, [{ number: 0n, ...given, ...other }]));
      expect(error).toMatchObject({ reason: 'ROLLOUT_CONFLICT', metadata: { fields } });
    }
  });
});
