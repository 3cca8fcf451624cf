import { expect, it } from 'vitest';
import { injectFaultsIntoTwoServers } from '../faults/two-servers.ts';

/** The short version of test/faults/two-servers.test.ts: each fault once. */
it('F1, O1, R1, R2: with late bytes, a stopped server and cuts, nothing older than the newest epoch commits', async () => {
  const { violations, surprises, faultCounts } = await injectFaultsIntoTwoServers(3);
  expect(violations).toEqual([]);
  expect(surprises).toEqual([]);
  expect(faultCounts).toMatchObject({ cuts: 1, 'stopped servers': 1 });
}, 120_000);
