import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { putState } from '../../src/service/state/state.ts';
import { createApp } from '../../src/stream/app.ts';
import { maintain, startMaintenance } from '../../src/stream/maintenance.ts';
import { describeApp, state, step } from '../service/on_app.ts';
import { laterByTheClock } from '../store/collection.ts';
import { logger } from '../store/on_store.ts';

describeApp('maintenance', (on) => {
  it('S2: collects states without references after their retention time, and no others', async () => {
    const scene = on.scene();
    const put = (text: string) => {
      const chunks = (async function* () {
        yield Buffer.from(text);
      })();
      return putState(scene.app, scene.caller, { digest: undefined, chunks });
    };
    const [loose, kept] = [await put('loose'), await put('kept')];
    const trajectory = await scene.create();
    await scene.write(trajectory, [step(0n, 'a', { states: [state(undefined, { digest: kept.digest })] })]);
    const here = () => scene.statesHere([loose.digest, kept.digest]);
    await maintain(on.store, { stateTtlHours: 24, requestDays: 7 }, () => false);
    expect(await here()).toHaveLength(2);
    await laterByTheClock();
    await maintain(on.store, { stateTtlHours: 0, requestDays: 7 }, () => false);
    expect(await here()).toEqual([kept]);
  });

  it('S2, ID1, RD2: by default, states are kept 24 h, keys 7 days, and followers get a message every 15 s', async () => {
    const app = createApp({ store: on.store, ids: { uuid: randomUUID, uid: randomUUID }, logger, settings: {} });
    expect(app.settings).toMatchObject({ stateTtlHours: 24, requestDays: 7, progressMs: 15_000, pollMs: 1000 });
    expect(app.settings).toMatchObject({ watchMs: 250, staleSweepMs: 5000, leaseSweepMs: 1000 });
    expect(app.settings.maintenanceMs).toBeGreaterThan(0);
    await app.close();
  });

  /** Tasks that find nothing to do, except those that a test passes. */
  const idle = {
    collectStates: async (_hours: number, _limit: number) => 0,
    expireRequests: async () => 0,
    purgeDeleted: async () => false,
    cancelMarkedRollouts: async () => false,
    failStaleRuns: async () => 0,
    sweepLeases: async () => 0,
    holdJobs: async () => true,
    releaseJobs: async () => undefined,
  };
  const settings = {
    jobLeaseMs: 0,
    maintenanceMs: 0,
    staleSweepMs: 0,
    leaseSweepMs: 0,
    stateTtlHours: 24,
    requestDays: 7,
  };

  it('runs by itself, continues after a failure, and stops with the app', async () => {
    const rounds = Promise.withResolvers<void>();
    let calls = 0;
    const flaky = {
      ...idle,
      collectStates: async () => {
        calls += 1;
        if (calls === 1) throw new Error('down');
        rounds.resolve();
        return 0;
      },
    };
    const running = startMaintenance(flaky, { logger }, { ...settings, maintenanceMs: 5 }, randomUUID());
    await rounds.promise;
    await running.stop();
    const after = calls;
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(calls).toBe(after);
  });

  it('works in bounded batches, and stops between two of them on request', async () => {
    const asked: number[] = [];
    const endless = {
      ...idle,
      collectStates: async (_hours: number, limit: number) => {
        asked.push(limit);
        return limit;
      },
    };
    await maintain(endless, settings, () => asked.length === 3);
    expect(asked).toEqual([500, 500, 500]);
  });

  it('B4: every start purges all deleted rows, including those that a killed server left', async () => {
    let left = 3;
    const purged = Promise.withResolvers<void>();
    const purgeDeleted = async () => {
      left -= 1;
      if (left === 0) purged.resolve();
      return left > 0;
    };
    const running = startMaintenance(
      { ...idle, purgeDeleted },
      { logger },
      { ...settings, maintenanceMs: 3_600_000 },
      randomUUID(),
    );
    await purged.promise;
    await running.stop();
    expect(left).toBe(0);
  });

  it('B4: a purge requested while another one ends is not missed', async () => {
    const looks: PromiseWithResolvers<boolean>[] = [];
    const looked = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const purgeDeleted = () => {
      const look = Promise.withResolvers<boolean>();
      looked[looks.push(look) - 1]?.resolve();
      return look.promise;
    };
    const running = startMaintenance({ ...idle, purgeDeleted }, { logger }, settings, randomUUID());
    running.purgeSoon();
    await looked[0]!.promise;
    running.purgeSoon();
    running.purgeSoon();
    looks[0]!.resolve(false);
    await looked[1]!.promise;
    looks[1]!.resolve(false);
    await running.stop();
    expect(looks).toHaveLength(2);
  });

  it('L2: stale runs are searched every few seconds, in batches until none is left', async () => {
    const found = [500, 500, 20];
    const swept = Promise.withResolvers<void>();
    const failStaleRuns = async (limit: number) => {
      expect(limit).toBe(500);
      const some = found.shift() ?? 0;
      if (some === 20) swept.resolve();
      return some;
    };
    const running = startMaintenance(
      { ...idle, failStaleRuns },
      { logger },
      { ...settings, staleSweepMs: 5 },
      randomUUID(),
    );
    await swept.promise;
    await running.stop();
    expect(found).toEqual([]);
  });

  it('Q3: expired leases are searched every second, in batches until none is left', async () => {
    const found = [500, 500, 20];
    const swept = Promise.withResolvers<void>();
    const sweepLeases = async (limit: number) => {
      expect(limit).toBe(500);
      const some = found.shift() ?? 0;
      if (some === 20) swept.resolve();
      return some;
    };
    const running = startMaintenance(
      { ...idle, sweepLeases },
      { logger },
      { ...settings, leaseSweepMs: 5 },
      randomUUID(),
    );
    await swept.promise;
    await running.stop();
    expect(found).toEqual([]);
  });
});
