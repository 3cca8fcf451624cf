import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { type ClaimsOutcome, injectFaultsIntoClaims } from './claims/injected_faults.ts';
import { reportFigures } from './figures.ts';

/** A claim belongs to one worker at a time, and a rollout is completed once, whichever process dies. */
function expectKept({ violations, surprises, faultCounts }: ClaimsOutcome): void {
  expect(violations.slice(0, 20)).toEqual([]);
  expect(surprises.slice(0, 20)).toEqual([]);
  for (const [what, times] of Object.entries(faultCounts)) expect(times, what).toBeGreaterThan(0);
  expect(faultCounts['of these refused']).toBe(faultCounts['leases that ran out while stopped']);
}

it('F2, Q1, Q2, Q3: 50 workers on two servers on Postgres complete many rollouts exactly once each, with processes killed and stopped', async () => {
  const outcome = await injectFaultsIntoClaims({
    engine: 'postgres',
    servers: 2,
    processes: dose(5, 10),
    workersEach: dose(10, 5),
    groups: dose(20, 125),
    groupSize: 8,
    doneBetween: dose([8, 16], [60, 120]),
  });
  reportFigures('claims by 50 workers on two servers on Postgres', outcome.figures);
  expectKept(outcome);
});

it('F2, Q1, Q2, Q3: 16 workers on one server on SQLite complete many rollouts exactly once each, with processes killed and stopped', async () => {
  const outcome = await injectFaultsIntoClaims({
    engine: 'sqlite',
    servers: 1,
    processes: 4,
    workersEach: 4,
    groups: dose(15, 25),
    groupSize: 8,
    doneBetween: dose([5, 12], [8, 20]),
  });
  reportFigures('claims by 16 workers on one server on SQLite', outcome.figures);
  expectKept(outcome);
});
