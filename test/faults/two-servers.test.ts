import { expect, it } from 'vitest';
import { reportFigures } from './figures.ts';
import { harmTwoServers } from './two-servers.ts';

it('F1, W1, O1, R1, R2: with take-overs, late bytes and stopped servers, nothing older than the newest epoch commits', async () => {
  const { violations, surprises, harm, figures } = await harmTwoServers(24);
  await reportFigures('two servers on one Postgres', figures);
  expect(violations).toEqual([]);
  expect(surprises).toEqual([]);
  expect(harm['late bytes'], 'nothing arrived late').toBeGreaterThan(0);
  expect(harm['taken over while stopped'], 'nothing was taken over from a stopped server').toBeGreaterThan(0);
});
