import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { describeStore } from './on_store.ts';

const LEASE_MS = 3_600_000;

describeStore('the lease of background jobs', (on) => {
  const hold = (holder: string, leaseMs = LEASE_MS) => on.store.holdJobs(holder, leaseMs);
  const letPass = (seconds: number) =>
    on.sql.rows(`update job_leases set end_time = ${on.sql.earlier('end_time', seconds)}`);

  it('has one holder at a time, who can renew it, until it ends by the clock of the database', async () => {
    const [one, other] = [randomUUID(), randomUUID()];
    expect([await hold(one), await hold(other), await hold(one)]).toEqual([true, false, true]);
    await letPass(3599);
    expect(await hold(other)).toBe(false);
    await letPass(1);
    expect([await hold(other), await hold(one)]).toEqual([true, false]);
    await on.store.releaseJobs(one);
    expect(await hold(one)).toBe(false);
    await on.store.releaseJobs(other);
    expect(await hold(one)).toBe(true);
    await on.store.releaseJobs(one);
  });

  it('has one holder, however many ask at once', async () => {
    const asking = Array.from({ length: 20 }, () => randomUUID());
    const held = await Promise.all(asking.map((holder) => hold(holder)));
    expect(held.filter((holds) => holds)).toHaveLength(1);
    await on.store.releaseJobs(asking[held.indexOf(true)]!);
  });

  it('can be taken from a holder whose lease ends later than a new one: its clock was ahead', async () => {
    const [one, other] = [randomUUID(), randomUUID()];
    await hold(one, 2 * LEASE_MS);
    expect(await hold(other)).toBe(true);
    await on.store.releaseJobs(other);
  });
});
