import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { describeApp } from '../service/on_app.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

describeApp('background jobs of several instances', (on) => {
  it('run on the one that holds the lease; another one takes over when it stops or loses its database', async () => {
    const sweeps = new Map<string, number>();
    const isCut = new Set<string>();
    const instance = (name: string) =>
      on.app(
        { jobLeaseMs: 90, staleSweepMs: 5 },
        wrappedStore(on.store, {
          holdJobs: async (...args) => {
            if (isCut.has(name)) throw new Error('no connection');
            return on.store.holdJobs(...args);
          },
          failStaleRuns: async () => {
            sweeps.set(name, (sweeps.get(name) ?? 0) + 1);
            return 0;
          },
        }),
      );
    /** Which instances sweep, once one has. */
    const sweeping = async () => {
      sweeps.clear();
      await expect.poll(() => Math.max(0, ...sweeps.values()), { timeout: 10_000 }).toBeGreaterThan(3);
      return [...sweeps.keys()];
    };
    const one = instance('one');
    expect(await sweeping()).toEqual(['one']);
    const two = instance('two');
    isCut.add('one');
    await expect.poll(sweeping, { timeout: 10_000 }).toEqual(['two']);
    isCut.clear();
    await two.close();
    await expect.poll(sweeping, { timeout: 10_000 }).toEqual(['one']);
    await one.close();
    expect(await on.store.holdJobs(randomUUID(), 1)).toBe(true);
  });

  it('Q3: do not include the requeueing of rollouts, which every instance does', async () => {
    const other = randomUUID();
    await on.store.holdJobs(other, 60_000);
    let sweeps = 0;
    const sweepLeases = async () => {
      sweeps += 1;
      return 0;
    };
    const app = on.app({ jobLeaseMs: 90, leaseSweepMs: 5 }, wrappedStore(on.store, { sweepLeases }));
    await expect.poll(() => sweeps, { timeout: 10_000 }).toBeGreaterThan(0);
    await app.close();
    await on.store.releaseJobs(other);
  });
});
