import { expect, it } from 'vitest';
import { killServer } from '../faults/kill-server.ts';

/** The short version of test/faults/kill-server.test.ts, which kills servers on both engines. */
it('D1, O1: after a kill -9 of the server on SQLite no acked step is lost or duplicated', async () => {
  const { violations, surprises, leastInFlight } = await killServer({ engine: 'sqlite', kills: 1 });
  expect(violations).toEqual([]);
  expect(surprises).toEqual([]);
  expect(leastInFlight).toBeGreaterThan(0);
});
