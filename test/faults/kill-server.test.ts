import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { reportFigures } from './figures.ts';
import { type KillOutcome, type KillPlan, killServer } from './kill-server.ts';

/** The most runs of a plan until a kill has fallen between a commit and its ack. */
const RUNS = 6;

it.each<[string, KillPlan]>([
  ['the server on sqlite', { engine: 'sqlite', kills: dose(2, 20), untilReplayed: true }],
  [
    'one of three servers on postgres',
    { engine: 'postgres', servers: 3, kills: dose(2, 20), untilReplayed: dose(false, true) },
  ],
  [
    'one of three servers on postgres behind pgbouncer',
    { engine: 'postgres', servers: 3, isPooled: true, kills: dose(1, 20), untilReplayed: dose(false, true) },
  ],
])(
  'D1, D2, O1, I1, F1, R1, R2: kill -9 of %s during appends loses no acked step, duplicates none, and leaves no gap',
  async (what, plan) => {
    let outcome: KillOutcome;
    // Of several servers, the answers that a kill lost can be those of readers. Then the run proves less, and another
    // one follows.
    let runs = 0;
    do {
      outcome = await killServer(plan);
      runs += 1;
      reportFigures(`kill -9 of ${what}`, outcome.figures);
      expect(outcome.violations).toEqual([]);
      expect(outcome.surprises).toEqual([]);
      expect(outcome.leastInFlight, 'a kill with nothing in flight proves nothing').toBeGreaterThan(0);
    } while (outcome.unackedButStored === 0 && runs < RUNS);
    expect(outcome.unackedButStored, 'no kill fell between a commit and its ack').toBeGreaterThan(0);
    expect(outcome.mergedRows, 'nothing was merged').toBeGreaterThan(0);
    if (plan.untilReplayed)
      expect(outcome.replayedStored, 'no helper had to send again what was stored').toBeGreaterThan(0);
  },
);
