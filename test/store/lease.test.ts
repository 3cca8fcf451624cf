import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Claim } from '../../src/store/contract/rollout.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { NO_RESULT, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';

describeStore('leases', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    return { scene, ...(await scene.place()) };
  };

  /** Moves the start of a lease into the past, as if that much time had passed. */
  async function age(claim: Claim, what: 'lease' | 'commit', seconds: number): Promise<void> {
    const ago = (column: string) => on.sql.earlier(column, seconds).replaceAll("'--", "'+");
    await on.sql.rows(
      what === 'lease'
        ? `update rollouts set lease_end_time = ${ago('lease_end_time')} where key = ${claim.rollout.key}`
        : `update segments set commit_time = ${ago('commit_time')} where trajectory = ${claim.trajectory.ref.key}`,
    );
  }

  async function silence(claim: Claim, seconds: number): Promise<void> {
    await age(claim, 'lease', seconds);
    await age(claim, 'commit', seconds);
  }

  it('Q2: a heartbeat extends the leases that it holds, returns the status of each rollout and run, and reports lost leases', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 4);
    const [a, b, c, d] = await scene.claims({ count: 4, leaseMs: 20_000 });
    await scene.start(b!);
    await scene.release(tokenOf(c!));
    await scene.complete(d!);
    await scene.move(run, 'pause');
    const nowhere = { id: randomUUID(), attempt: 1 };
    const stale = { ...tokenOf(a!), attempt: 2 };
    const leases = [tokenOf(a!), nowhere, tokenOf(b!), stale, tokenOf(c!), tokenOf(d!)];
    const states = await scene.heartbeat(leases);
    const lost = { kept: false, remainingMs: undefined, runStatus: 'PAUSED' };
    expect(states).toEqual([
      { ...tokenOf(a!), kept: true, status: 'INITIALIZING', runStatus: 'PAUSED', remainingMs: 20_000 },
      { ...nowhere, kept: false, status: undefined, runStatus: undefined, remainingMs: undefined },
      { ...tokenOf(b!), kept: true, status: 'RUNNING', runStatus: 'PAUSED', remainingMs: 20_000 },
      { ...stale, ...lost, status: 'INITIALIZING' },
      { ...tokenOf(c!), ...lost, status: 'PENDING' },
      { ...tokenOf(d!), ...lost, status: 'COMPLETED' },
    ]);
  });

  it('Q2: a heartbeat sets the end of the lease to now plus its duration, or plus the last given duration', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne({ leaseMs: 20_000 });
    await scene.heartbeat([tokenOf(claim)], 90_000);
    const longer = await scene.rollout(claim.rollout.id);
    expect(longer.leaseEndTime).toBeGreaterThan(claim.rollout.updateTime + 90_000_000_000n);
    await age(claim, 'lease', 600);
    await scene.heartbeat([tokenOf(claim)]);
    const usual = await scene.rollout(claim.rollout.id);
    expect(usual.leaseEndTime).toBeGreaterThan(longer.leaseEndTime!);
    const { revision, updateTime } = claim.rollout;
    expect(usual, 'heartbeats are no change of the row').toMatchObject({ revision, updateTime });
  });

  it('Q3: a heartbeat can shorten a lease, also after an append, and the sweep then ends it', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 2);
    const [silent, appending] = await scene.claims({ count: 2, leaseMs: 3_600_000 });
    await scene.append(appending!.trajectory, [wordStep(0n, 'root')]);
    const states = await scene.heartbeat([tokenOf(silent!), tokenOf(appending!)], 60_000);
    expect(states.map(({ remainingMs }) => remainingMs)).toEqual([60_000, 60_000]);
    for (const claim of [silent!, appending!]) {
      const { leaseEndTime, updateTime } = await scene.rollout(claim.rollout.id);
      expect(leaseEndTime).toBeGreaterThan(updateTime + 60_000_000_000n);
      expect(leaseEndTime).toBeLessThan(updateTime + 3_600_000_000_000n);
      await silence(claim, 61);
    }
    expect(await on.store.sweepLeases(100)).toBe(2);
  });

  it('Q3: after a shorter heartbeat, an append extends the lease by the shorter time', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne({ leaseMs: 3_600_000 });
    await scene.heartbeat([tokenOf(claim)], 60_000);
    await age(claim, 'lease', 3600);
    await scene.append(claim.trajectory, [wordStep(0n, 'root')]);
    const { updateTime } = await scene.trajectoryOf(claim);
    expect((await scene.rollout(claim.rollout.id)).leaseEndTime).toBe(updateTime + 60_000_000_000n);
    expect(await on.store.sweepLeases(100)).toBe(0);
    await silence(claim, 61);
    expect(await on.store.sweepLeases(100)).toBe(1);
  });

  it('Q3: creating or updating the trajectory does not count as an append', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne({ leaseMs: 3_600_000 });
    await age(claim, 'lease', 7200);
    await scene.store.updateTrajectory(scene.namespace, claim.trajectory.id, { name: 'renamed' });
    expect(await on.store.sweepLeases(100)).toBe(1);
  });

  it('N1: a heartbeat of another namespace extends nothing and reveals nothing', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne();
    const stranger = new RolloutScene(on.store);
    expect(await stranger.heartbeat([tokenOf(claim)])).toMatchObject([{ kept: false, status: undefined }]);
    expect(await scene.rollout(claim.rollout.id)).toEqual(claim.rollout);
  });

  it('Q3: an expired lease requeues the rollout as a new attempt; the failed one stays visible', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1);
    const claim = await scene.claimOne({ workerId: 'gone', leaseMs: 100_000 });
    await scene.start(claim);
    await silence(claim, 600);
    expect(await on.store.sweepLeases(100)).toBe(1);
    const { rollout, attempts } = await scene.record(id);
    expect(rollout).toMatchObject({ status: 'PENDING', attempt: 1, workerId: '', leaseEndTime: undefined });
    expect(rollout.statusMessage).toMatch(
      /^attempt 1 lost its lease: no heartbeat or append of worker "gone" for 6\d\d s$/,
    );
    expect(attempts).toMatchObject([{ status: 'FAILED', message: rollout.statusMessage, workerId: 'gone' }]);
    expect(await scene.trajectoryOf(claim)).toMatchObject({ status: 'FAILED', statusMessage: rollout.statusMessage });
    expect((await scene.history('ROLLOUT', { id })).at(-1)).toMatchObject({
      oldStatus: 'RUNNING',
      newStatus: 'PENDING',
      actor: 'anabranch',
    });
    expect((await refusalOf(scene.complete(claim))).reason).toBe('LEASE_LOST');
    const late = scene.append(claim.trajectory, [wordStep(0n, 'late')]);
    expect((await refusalOf(late)).reason).toBe('TRAJECTORY_SEALED');
    expect((await scene.claimOne()).rollout).toMatchObject({ id, attempt: 2 });
    expect(await on.store.sweepLeases(100)).toBe(0);
  });

  it('Q2: completion is refused after the requeue, not merely after the expiry', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne({ leaseMs: 100_000 });
    await silence(claim, 3600);
    expect((await scene.complete(claim)).status).toBe('COMPLETED');
    expect(await on.store.sweepLeases(100)).toBe(0);
  });

  it('Q3: a heartbeat after the expiry, but before the sweep, extends the lease', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne({ leaseMs: 100_000 });
    await silence(claim, 600);
    expect(await scene.heartbeat([tokenOf(claim)])).toMatchObject([{ kept: true }]);
    expect(await on.store.sweepLeases(100)).toBe(0);
  });

  it('Q3: an append extends the lease as a heartbeat does, and the rollout shows the new end', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne({ leaseMs: 100_000 });
    await silence(claim, 600);
    await scene.append(claim.trajectory, [wordStep(0n, 'a')]);
    const { updateTime } = await scene.trajectoryOf(claim);
    expect((await scene.rollout(claim.rollout.id)).leaseEndTime).toBe(updateTime + 100_000_000_000n);
    expect(await on.store.sweepLeases(100)).toBe(0);
    expect(await scene.rollout(claim.rollout.id)).toMatchObject({
      status: 'INITIALIZING',
      leaseEndTime: updateTime + 100_000_000_000n,
    });
    await silence(claim, 600);
    expect(await on.store.sweepLeases(100)).toBe(1);
  });

  it('Q3: at max_attempts the rollout is FAILED, with the turns and reward of the last attempt', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1, { maxAttempts: 2 });
    for (const attempt of [1, 2]) {
      const claim = await scene.claimOne({ leaseMs: 100_000 });
      expect(claim.rollout.attempt).toBe(attempt);
      await scene.append(claim.trajectory, [wordStep(0n, 'r'), wordStep(1n, 'a', { reward: attempt })]);
      await silence(claim, 600);
      expect(await on.store.sweepLeases(100)).toBe(1);
    }
    expect(await scene.rollout(id)).toMatchObject({ status: 'FAILED', attempt: 2, turns: 1n, reward: 2 });
    expect(await scene.claims()).toEqual([]);
    expect(await scene.retry({ id, attempt: 2 })).toMatchObject({ status: 'PENDING', maxAttempts: 3 });
  });

  it('Q3, F-49: after the success of a sibling under CANCEL_PENDING it is CANCELLED', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 2, { onSuccess: 'CANCEL_PENDING' });
    const [a, b] = await scene.claims({ count: 2, leaseMs: 100_000 });
    await scene.complete(a!, { result: { ...NO_RESULT, success: true } });
    await silence(b!, 600);
    expect(await on.store.sweepLeases(100)).toBe(1);
    expect(await scene.rollout(b!.rollout.id)).toMatchObject({ status: 'CANCELLED', attempt: 1 });
  });

  it('Q3: a worker whose trajectory was deleted loses its lease like any other', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne({ leaseMs: 100_000 });
    await scene.delete(claim.trajectory);
    await age(claim, 'lease', 600);
    expect(await on.store.sweepLeases(100)).toBe(1);
    expect((await scene.rollout(claim.rollout.id)).status).toBe('PENDING');
  });

  it('Q3: a sweep handles at most its limit, and leases extended by appends do not block expired ones', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 12);
    const claims = await scene.claims({ count: 12, leaseMs: 100_000 });
    for (const [i, claim] of claims.entries()) {
      await age(claim, 'lease', 600 - i);
      await age(claim, 'commit', 600);
    }
    for (const claim of claims.slice(0, 6)) await scene.append(claim.trajectory, [wordStep(0n, 'a')]);
    const swept = [];
    for (let i = 0; i < 4; i += 1) swept.push(await on.store.sweepLeases(2));
    expect(swept).toEqual([2, 2, 2, 0]);
    const pending = await scene.rollouts({ stageId: stage.id }, { statuses: ['PENDING'] });
    expect(pending.map(({ id }) => id)).toEqual(claims.slice(6).map(({ rollout }) => rollout.id));
  });

  it('Q3: many concurrent sweeps requeue each rollout once', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 30);
    const claims = await scene.claims({ count: 30, leaseMs: 100_000 });
    for (const claim of claims) await silence(claim, 600);
    const swept = await Promise.all(Array.from({ length: 5 }, () => on.store.sweepLeases(100)));
    expect(swept.reduce((sum, count) => sum + count, 0)).toBe(30);
    for (const claim of claims) {
      expect(await scene.history('ROLLOUT', claim.rollout)).toHaveLength(3);
      expect((await scene.record(claim.rollout.id)).attempts).toHaveLength(1);
    }
  });

  it('F2: a worker that completes during the sweep of its lease either completed or lost it, never both', async () => {
    const seen = new Set<string>();
    for (let round = 0; round < 15; round += 1) {
      const { scene, stage } = await fresh();
      await scene.queue(stage, 1);
      const claim = await scene.claimOne({ leaseMs: 100_000 });
      await silence(claim, 600);
      const [completed] = await Promise.all([
        scene.complete(claim).then(
          () => 'completed',
          (error: { reason?: string }) => error.reason,
        ),
        on.store.sweepLeases(10),
      ]);
      seen.add(`${completed}`);
      const { rollout, attempts } = await scene.record(claim.rollout.id);
      expect([completed, rollout.status]).toEqual(
        completed === 'completed' ? ['completed', 'COMPLETED'] : ['LEASE_LOST', 'PENDING'],
      );
      // The sweep also counts rollouts of other tests.
      expect(attempts.map(({ status }) => status)).toEqual([completed === 'completed' ? 'COMPLETED' : 'FAILED']);
    }
    expect(seen.size).toBeGreaterThan(0);
  });

  it('Q3: after a clock was 400 days ahead, a silent attempt is requeued after one lease, and an active one is kept', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 2);
    const [silent, active] = await scene.claims({ count: 2, leaseMs: 20_000 });
    for (const claim of [silent!, active!]) await scene.append(claim.trajectory, [wordStep(0n, 'a')]);
    const days = 400 * 86_400;
    await silence(silent!, -days);
    await silence(active!, -days);
    await on.store.sweepLeases(1000);
    const now = (await scene.make()).run.createTime;
    for (const claim of [silent!, active!]) {
      const { leaseEndTime, status } = await scene.rollout(claim.rollout.id);
      expect([status, leaseEndTime! <= now + 20_000_000_000n]).toEqual(['INITIALIZING', true]);
    }
    // One lease later.
    for (const claim of [silent!, active!]) await age(claim, 'lease', 21);
    await scene.heartbeat([tokenOf(active!)]);
    await on.store.sweepLeases(1000);
    expect((await scene.rollout(silent!.rollout.id)).status).toBe('PENDING');
    expect((await scene.rollout(active!.rollout.id)).status).toBe('INITIALIZING');
  });
});
