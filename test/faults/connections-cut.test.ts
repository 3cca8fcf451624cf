import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { reportFigures } from './figures.ts';
import { CONNECTIONS } from './postgres/connections.ts';
import { cutConnections } from './postgres/cutting.ts';
import { A1_MS, MACHINE_MS } from './postgres/outage.ts';
import { seededRandom } from './random.ts';

it('A1, D1: connections to Postgres that are cut, many at once, or silent lose no acked step, and no call waits longer than 5 s', async () => {
  const random = seededRandom();
  const survived = await cutConnections({ cuts: dose(12, 36), silences: 1, writers: 8, random });
  const { acked, stored, storedUnacked, lost, answers } = survived;
  reportFigures('connections cut', {
    seed: random.seed,
    'acked steps checked': acked,
    'steps stored': stored,
    'unacked but stored': storedUnacked,
    lost,
    'connections cut': survived.connectionsCut,
    'of them backends ended': survived.backendsEnded,
    'streams cut': survived.streamsCut,
    'answers in silence': answers.length,
    'slowest answer (ms)': Math.round(Math.max(...answers.map(({ ms }) => ms))),
    'slowest recovery (ms)': Math.round(survived.recoveryMs),
  });
  expect(survived.serverLived).toBe(true);
  expect(survived.serverFaults).toEqual([]);
  expect(lost).toBe(0);
  expect(survived.faults).toEqual([]);
  expect(survived.failures).toEqual([]);
  expect(answers.filter(({ objection, ms }) => objection !== undefined || ms > A1_MS + MACHINE_MS)).toEqual([]);
  expect(survived.recoveryMs).toBeLessThanOrEqual(A1_MS + MACHINE_MS);
  expect(survived.connectionsLeft).toBeLessThanOrEqual(CONNECTIONS);
  expect(survived.backendsEnded).toBeGreaterThan(0);
  expect(survived.connectionsCut).toBeGreaterThan(24);
  expect(survived.streamsCut).toBeGreaterThan(0);
});
