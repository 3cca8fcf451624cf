import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { reportFigures } from './figures.ts';
import { injectFaultsIntoServers } from './several-servers.ts';

it.each([
  ['', false, dose(6, 24)],
  [' behind pgbouncer', true, dose(3, 24)],
] as const)(
  'F1, W1, O1, R1, R2: with take-overs, late bytes and stopped servers of three%s, nothing older than the newest epoch commits',
  async (where, isPooled, rounds) => {
    const outcome = await injectFaultsIntoServers({ engine: 'postgres', servers: 3, isPooled }, rounds);
    const { violations, surprises, faultCounts, figures } = outcome;
    reportFigures(`three servers on one Postgres${where}`, figures);
    expect(violations).toEqual([]);
    expect(surprises).toEqual([]);
    expect(faultCounts['late bytes'], 'nothing arrived late').toBeGreaterThan(0);
    expect(faultCounts['taken over while stopped'], 'nothing was taken over from a stopped server').toBeGreaterThan(0);
  },
);
