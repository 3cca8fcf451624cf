import { expect, it } from 'vitest';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene, tokenOf } from './rollout_scene.ts';
import { letPass } from './time_travel.ts';

const S = 1_000_000_000n;

describeStore('leases of paused runs', (on) => {
  const claimed = async (count = 1) => {
    const scene = new RolloutScene(on.store);
    const { run, stage } = await scene.place();
    await scene.queue(stage, count);
    return { scene, run, claims: await scene.claims({ count, leaseMs: 600_000 }) };
  };

  it('Q3: no lease expires while the run is paused, and none expires because the run is resumed', async () => {
    const { scene, run, claims } = await claimed(2);
    const [silent, appending] = claims;
    await scene.append(appending!.trajectory, [wordStep(0n, 'root')]);
    await letPass(on.sql, scene, 400);
    await scene.move(run, 'pause');
    await letPass(on.sql, scene, 72000);
    expect(await on.store.sweepLeases(100), 'while it is paused').toBe(0);
    await scene.move(run, 'resume');
    expect(await on.store.sweepLeases(100), 'when it is resumed').toBe(0);
    const { leaseEndTime } = await scene.rollout(silent!.rollout.id);
    expect(leaseEndTime, '200 s of the leases are left').toBeLessThanOrEqual(
      (await scene.run(run.id)).updateTime + 200n * S,
    );
    await letPass(on.sql, scene, 150);
    expect(await on.store.sweepLeases(100)).toBe(0);
    await letPass(on.sql, scene, 60);
    expect(await on.store.sweepLeases(100)).toBe(2);
  });

  it('Q3: a sweep skips paused runs, so that their leases do not block others', async () => {
    const { run, scene } = await claimed(5);
    await scene.move(run, 'pause');
    const other = await claimed();
    await letPass(on.sql, scene, 620);
    await letPass(on.sql, other.scene, 610);
    expect(await on.store.sweepLeases(1)).toBe(1);
    expect(await other.scene.rollout(other.claims[0]!.rollout.id)).toMatchObject({ status: 'PENDING' });
    expect(await on.store.sweepLeases(1)).toBe(0);
  });

  it('Q3: a heartbeat during a pause is stored, and the lease lasts its full duration from the end of the pause', async () => {
    const { scene, run, claims } = await claimed();
    await scene.move(run, 'pause');
    await letPass(on.sql, scene, 6000);
    const state = { kept: true, runStatus: 'PAUSED', remainingMs: 300_000 };
    expect(await scene.heartbeat(claims.map(tokenOf), 300_000)).toMatchObject([state]);
    await letPass(on.sql, scene, 6000);
    await scene.move(run, 'resume');
    await letPass(on.sql, scene, 250);
    expect(await on.store.sweepLeases(100)).toBe(0);
    await letPass(on.sql, scene, 60);
    expect(await on.store.sweepLeases(100)).toBe(1);
  });

  it('Q3: an append during a pause extends the lease from the end of the pause', async () => {
    const { scene, run, claims } = await claimed();
    await letPass(on.sql, scene, 500);
    await scene.move(run, 'pause');
    await letPass(on.sql, scene, 6000);
    await scene.append(claims[0]!.trajectory, [wordStep(0n, 'root')]);
    await letPass(on.sql, scene, 6000);
    await scene.move(run, 'resume');
    await letPass(on.sql, scene, 550);
    expect(await on.store.sweepLeases(100)).toBe(0);
    await letPass(on.sql, scene, 60);
    expect(await on.store.sweepLeases(100)).toBe(1);
  });

  it('Q3: all pauses since the last append count, however many there were', async () => {
    const { scene, run, claims } = await claimed();
    await scene.append(claims[0]!.trajectory, [wordStep(0n, 'root')]);
    for (let i = 0; i < 4; i += 1) {
      await letPass(on.sql, scene, 100);
      await scene.move(run, 'pause');
      await letPass(on.sql, scene, 6000);
      await scene.move(run, 'resume');
      expect(await on.store.sweepLeases(100)).toBe(0);
    }
    await letPass(on.sql, scene, 150);
    expect(await on.store.sweepLeases(100)).toBe(0);
    await letPass(on.sql, scene, 60);
    expect(await on.store.sweepLeases(100)).toBe(1);
  });

  it('Q3: a lease has no end while its run is paused; afterwards it ends later by the length of the pause', async () => {
    const { scene, run, claims } = await claimed();
    const { id, leaseEndTime } = claims[0]!.rollout;
    expect((await scene.rollout(id)).leaseEndTime).toBe(leaseEndTime);
    await scene.move(run, 'pause');
    expect(await scene.rollout(id)).toMatchObject({ leaseEndTime: undefined, workerId: 'worker' });
    await letPass(on.sql, scene, 1000);
    await scene.move(run, 'resume');
    const later = (await scene.rollout(id)).leaseEndTime! - leaseEndTime!;
    expect(later, 'minus the 1000 s by which all times were moved back').toBeGreaterThanOrEqual(0n);
    await letPass(on.sql, scene, 300);
    await scene.store.sweepLeases(100);
    expect((await scene.rollout(id)).leaseEndTime).toBe(leaseEndTime! + later - 300n * S);
  });

  it('Q3: a claim after a pause has its full lease and no more', async () => {
    const scene = new RolloutScene(on.store);
    const { run, stage } = await scene.place();
    await scene.queue(stage, 1);
    await scene.move(run, 'pause');
    await letPass(on.sql, scene, 6000);
    await scene.move(run, 'resume');
    const { rollout } = await scene.claimOne({ leaseMs: 600_000 });
    expect(rollout.leaseEndTime).toBe(rollout.updateTime + 600n * S);
    expect((await scene.rollout(rollout.id)).leaseEndTime).toBe(rollout.leaseEndTime);
    await letPass(on.sql, scene, 610);
    expect(await on.store.sweepLeases(100)).toBe(1);
  });

  it('Q3: leases of a run that ends while it is paused continue from that time', async () => {
    const { scene, run } = await claimed();
    await scene.move(run, 'pause');
    await letPass(on.sql, scene, 6000);
    await scene.move(run, 'complete');
    await letPass(on.sql, scene, 550);
    expect(await on.store.sweepLeases(100)).toBe(0);
    await letPass(on.sql, scene, 60);
    expect(await on.store.sweepLeases(100)).toBe(1);
  });
});
