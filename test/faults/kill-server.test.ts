import { describe, expect, it } from 'vitest';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { killServer, reportKills } from './kill-server.ts';

describe.each(ENGINES)('kill -9 of the server on %s', (engine) => {
  it('D1, D2, O1, I1, F1, R1, R2: kills during appends lose no acked step, duplicate none, and leave no gap', async () => {
    const plan = { engine, kills: dose(2, 20), untilReplayed: true };
    const outcome = await killServer(plan);
    await reportKills(plan, outcome);
    expect(outcome.violations).toEqual([]);
    expect(outcome.surprises).toEqual([]);
    expect(outcome.leastInFlight, 'a kill with nothing in flight proves nothing').toBeGreaterThan(0);
    expect(outcome.unackedButStored, 'no kill fell between a commit and its ack').toBeGreaterThan(0);
    expect(outcome.mergedRows, 'nothing was merged').toBeGreaterThan(0);
    expect(outcome.replayedStored, 'no helper had to send again what was stored').toBeGreaterThan(0);
  });
});
