import pg from 'pg';
import { expect, it } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { openOn } from '../store/on_store.ts';
import { refusalOf, Scene } from '../store/scene.ts';
import { createPostgresDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { startPgbouncer } from '../support/pgbouncer.ts';
import { type PostgresServer, startPostgres, startStandby } from '../support/postgres.ts';
import { wordStep } from '../support/steps.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { reportFigures } from './figures.ts';
import { type Promoted, promoteStandbys, tell } from './postgres/failover.ts';
import { seededRandom } from './random.ts';

const random = seededRandom();

it('D8: with a synchronous standby, promotions under load lose no acked step, and the server finds each new primary', async () => {
  const promotions = dose(3, 20);
  const promoted = await promoteStandbys({ promotions, writers: 8, random, synchronous: true });
  report('synchronous standby promoted', promotions, promoted);
  expect(promoted.serverLived).toBe(true);
  expect(promoted.serverFaults).toEqual([]);
  expect(promoted.lost).toBe(0);
  expect(promoted.faults).toEqual([]);
  expect(promoted.failures).toEqual([]);
  expect(promoted.noticed).toBe(promotions);
  // Otherwise the kills interrupted nothing, and the proof proves nothing.
  expect(promoted.inFlight).toBeGreaterThan(0);
});

it('negative control of D8: the same proof detects the steps that an asynchronous standby lacks, and their writers fail', async () => {
  const promoted = await promoteStandbys({ promotions: 1, writers: 8, random, synchronous: false, cutOff: true });
  report('asynchronous standby promoted', 1, promoted);
  expect(promoted.serverLived).toBe(true);
  expect(promoted.serverFaults).toEqual([]);
  expect(promoted.lost).toBeGreaterThan(0);
  expect(promoted.faults).toEqual([]);
  expect(promoted.failures).not.toEqual([]);
  for (const failure of promoted.failures) expect(failure).toMatch(/has only steps below \d+, but acked those below/);
});

it('A15: behind a pooler, a failover that cuts a statement closes all connections and empties what is kept', async () => {
  await using primary = await startPostgres();
  const database = await createPostgresDatabase(primary.url); // goes with its clusters
  await (await openOn(database)).close();
  await using standby = await startStandby(primary);
  await using proxy = await startTcpProxy({ path: socketOf(primary) });
  const { username, password, pathname } = new URL(database.url);
  const cable = `postgres://${username}:${password}@127.0.0.1:${proxy.port}${pathname}`;
  await using pooler = await startPgbouncer(cable, { poolSize: 4 });
  const warnings: string[] = [];
  const warn = (_details: object, message: string) => void warnings.push(message);
  const logger = { info() {}, warn, error: warn };
  const store = await openStore({ engine: 'postgres', url: pooler.url }, { logger });
  const scene = new Scene(store);
  const made = await scene.createWith(['a', 'b']);
  await tell(standby, 'select pg_promote()');
  // Only the old primary gets this step, and the store keeps the end of the trajectory in memory.
  await scene.append(made, [wordStep(2n, 'lost')]);
  // Connections that the failover does not cut.
  await Promise.all(Array.from({ length: 8 }, () => scene.get(made.id)));
  const blocker = new pg.Client(database.adminUrl);
  await blocker.connect();
  await blocker.query('begin; select * from anabranch.trajectories for update');
  const cut = refusalOf(scene.append(made, [wordStep(3n, 'cut')]));
  const waiting = `select 1 from pg_stat_activity where wait_event_type = 'Lock'`;
  await expect.poll(async () => (await tell(primary, waiting)).length, { timeout: 10_000 }).toBe(1);
  proxy.retarget({ path: socketOf(standby) });
  proxy.cut();
  expect(await cut).toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
  await expect.poll(() => scene.words(made).catch(String), { timeout: 10_000 }).toEqual(['a', 'b']);
  expect(warnings.filter((message) => message.includes('another timeline'))).toHaveLength(1);
  await blocker.end();
  await store.close();
});

function socketOf({ dir }: PostgresServer): string {
  return `${dir}/.s.PGSQL.5432`;
}

function report(proof: string, promotions: number, promoted: Promoted): void {
  const { acked, stored, lost, inFlight, storedUnacked, cuts, failures, recoveryMs } = promoted;
  reportFigures(proof, {
    seed: random.seed,
    promotions,
    'acked steps checked': acked,
    'steps stored': stored,
    'unacked but stored': storedUnacked,
    lost,
    'in flight at a kill, at least': inFlight,
    'streams cut': cuts,
    'writers that failed': failures.length,
    'slowest recovery (ms)': Math.round(recoveryMs),
  });
}
