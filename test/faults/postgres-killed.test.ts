import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { reportFigures } from './figures.ts';
import { CONNECTIONS } from './postgres/connections.ts';
import { killPostgres, type Survived } from './postgres/killing.ts';
import { A1_MS, MACHINE_MS } from './postgres/outage.ts';
import { commitWithoutWaiting } from './postgres/sabotage.ts';
import { seededRandom } from './random.ts';

const random = seededRandom();

it('D1, A1: acked steps survive kill -9 of Postgres, and the server answers UNAVAILABLE, never exits and recovers by itself', async () => {
  const survived = await killPostgres({ kills: dose(2, 10), writers: 8, random });
  report('postgres killed', survived);
  expect(survived.serverLived).toBe(true);
  expect(survived.serverFaults).toEqual([]);
  expect(survived.lost).toBe(0);
  expect(survived.faults).toEqual([]);
  expect(survived.failures).toEqual([]);
  expect(survived.answers.filter(({ objection, ms }) => objection !== undefined || ms > A1_MS + MACHINE_MS)).toEqual(
    [],
  );
  expect(survived.recoveryMs).toBeLessThanOrEqual(A1_MS + MACHINE_MS);
  expect(survived.connectionsLeft).toBeLessThanOrEqual(CONNECTIONS);
  // Otherwise the kills interrupted nothing, and the proof proves nothing.
  expect(survived.inFlight).toBeGreaterThan(0);
  // Whether a kill falls between a commit and its answer is random here, and only reported; kills of the server are
  // timed to.
});

it('negative control of D1: the same proof detects commits that do not wait for the disk', async () => {
  // Postgres writes such commits seldom, so that a kill loses some.
  const settings = { wal_writer_delay: '10s' };
  const survived = await killPostgres({ kills: 1, writers: 8, random, settings, sabotage: commitWithoutWaiting });
  report('postgres killed, control without synchronous_commit', survived);
  expect(survived.lost).toBeGreaterThan(0);
  expect(survived.failures).not.toEqual([]);
});

function report(proof: string, survived: Survived): void {
  const { kills, acked, stored, lost, inFlight, storedUnacked, cuts, answers, recoveryMs } = survived;
  reportFigures(proof, {
    seed: random.seed,
    kills,
    'acked steps checked': acked,
    'steps stored': stored,
    'unacked but stored': storedUnacked,
    lost,
    'in flight at a kill, at least': inFlight,
    'streams cut': cuts,
    'answers during outages': answers.length,
    'slowest answer (ms)': Math.round(Math.max(...answers.map(({ ms }) => ms))),
    'slowest recovery (ms)': Math.round(recoveryMs),
  });
}
