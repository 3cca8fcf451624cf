import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { reportFigures } from './figures.ts';
import { injectFaultsIntoTwoServers } from './two-servers.ts';

it('F1, W1, O1, R1, R2: with take-overs, late bytes and stopped servers, nothing older than the newest epoch commits', async () => {
  const { violations, surprises, faultCounts, figures } = await injectFaultsIntoTwoServers(dose(6, 24));
  reportFigures('two servers on one Postgres', figures);
  expect(violations).toEqual([]);
  expect(surprises).toEqual([]);
  expect(faultCounts['late bytes'], 'nothing arrived late').toBeGreaterThan(0);
  expect(faultCounts['taken over while stopped'], 'nothing was taken over from a stopped server').toBeGreaterThan(0);
});
