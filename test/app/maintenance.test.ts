import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { createApp } from '../../src/app/app.ts';
import { maintain, startMaintenance } from '../../src/app/maintenance.ts';
import { batchGetStates } from '../../src/app/state/batch_get.ts';
import { putState } from '../../src/app/state/put.ts';
import { logger } from '../store/on_store.ts';
import { describeApp, state, step } from './on_app.ts';

describeApp('maintenance', (on) => {
  it('S2: collects states that no step refers to, once their time is over, and no others', async () => {
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
    const here = () => batchGetStates(scene.app, scene.caller, { digests: [loose.digest, kept.digest] });
    await maintain(on.store, { stateTtlHours: 24, requestDays: 7 }, () => false);
    expect(await here()).toHaveLength(2);
    await maintain(on.store, { stateTtlHours: 0, requestDays: 7 }, () => false);
    expect(await here()).toEqual([kept]);
  });

  it('S2, ID1, RD2: unless told otherwise, states live 24 h, keys 7 days, and followers hear something every 15 s', async () => {
    const app = createApp({ store: on.store, ids: { uuid: randomUUID, uid: randomUUID }, logger, settings: {} });
    expect(app.settings).toMatchObject({ stateTtlHours: 24, requestDays: 7, progressMs: 15_000, pollMs: 1000 });
    expect(app.settings.maintenanceMs).toBeGreaterThan(0);
    await app.close();
  });

  it('runs by itself, goes on after a failure, and stops with the app', async () => {
    const rounds = Promise.withResolvers<void>();
    let calls = 0;
    const flaky = {
      collectStates: async () => {
        calls += 1;
        if (calls === 1) throw new Error('down');
        rounds.resolve();
        return 0;
      },
      expireRequests: on.store.expireRequests.bind(on.store),
    };
    const running = startMaintenance(flaky, logger, { maintenanceMs: 5, stateTtlHours: 24, requestDays: 7 });
    await rounds.promise;
    await running.stop();
    const after = calls;
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(calls).toBe(after);
  });

  it('works in bounded batches, and stops between two of them when asked', async () => {
    const asked: number[] = [];
    const endless = {
      collectStates: async (_hours: number, limit: number) => {
        asked.push(limit);
        return limit;
      },
      expireRequests: async () => 0,
    };
    await maintain(endless, { stateTtlHours: 24, requestDays: 7 }, () => asked.length === 3);
    expect(asked).toEqual([500, 500, 500]);
  });
});
