import { describe, expect, it } from 'vitest';
import { killServer } from '../faults/kill-server.ts';
import { ENGINES } from '../support/database.ts';

/** The short version of test/faults/kill-server.test.ts. */
describe.each(ENGINES)('kill -9 of the server on %s, once', (engine) => {
  it('D1, O1: no acked step is lost or duplicated', async () => {
    const { violations, surprises, leastInFlight } = await killServer({ engine, kills: 1 });
    expect(violations).toEqual([]);
    expect(surprises).toEqual([]);
    expect(leastInFlight).toBeGreaterThan(0);
  }, 120_000);
});
