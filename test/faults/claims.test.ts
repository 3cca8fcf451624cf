import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { type ClaimsOutcome, type ClaimsPlan, injectFaultsIntoClaims } from './claims/injected_faults.ts';
import { reportFigures } from './figures.ts';

/** A claim belongs to one worker at a time, and a rollout is completed once, whichever process dies. */
function expectKept({ violations, surprises, faultCounts }: ClaimsOutcome): void {
  expect(violations.slice(0, 20)).toEqual([]);
  expect(surprises.slice(0, 20)).toEqual([]);
  for (const [what, times] of Object.entries(faultCounts)) expect(times, what).toBeGreaterThan(0);
  expect(faultCounts['of these refused']).toBe(faultCounts['leases that ran out while stopped']);
}

it.each<[string, ClaimsPlan]>([
  [
    'three servers on Postgres',
    {
      engine: 'postgres',
      servers: 3,
      processes: dose(5, 10),
      workersEach: dose(10, 5),
      groups: dose(20, 125),
      groupSize: 8,
      doneBetween: dose([8, 16], [60, 120]),
    },
  ],
  [
    'three servers on Postgres behind pgbouncer',
    {
      engine: 'postgres',
      servers: 3,
      isPooled: true,
      processes: dose(3, 10),
      workersEach: dose(6, 5),
      groups: dose(14, 125),
      groupSize: 8,
      doneBetween: dose([6, 12], [60, 120]),
    },
  ],
  [
    'one server on SQLite',
    {
      engine: 'sqlite',
      processes: 4,
      workersEach: 4,
      groups: dose(15, 25),
      groupSize: 8,
      doneBetween: dose([5, 12], [8, 20]),
    },
  ],
])(
  'F2, Q1, Q2, Q3: many workers on %s complete many rollouts exactly once each, with processes killed and stopped',
  async (where, plan) => {
    const outcome = await injectFaultsIntoClaims(plan);
    reportFigures(`claims on ${where}`, outcome.figures);
    expectKept(outcome);
  },
);
