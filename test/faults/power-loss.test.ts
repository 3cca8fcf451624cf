import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPostgresDatabase, ENGINES, type TestDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { type PostgresServer, startPostgres } from '../support/postgres.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { reportFigures } from './figures.ts';
import { asOwner } from './postgres/connections.ts';
import { commitWithoutWaiting } from './postgres/sabotage.ts';
import { type SyncTrace, startSyncTrace } from './power/strace.ts';
import { type Traced, tracePostgres, traceSqlite } from './power/syncs.ts';

const DOSE = { steps: dose(60, 200), writers: 8 };
/** Groups that the server commits concurrently on Postgres: this many may share one sync. */
const LANES = 2;

let trace: SyncTrace;
let postgres: PostgresServer;

beforeAll(async () => {
  trace = await startSyncTrace();
  // Commits that do not wait are synced later, and seldom enough not to look as if each of them were.
  postgres = await startPostgres({ wrapper: trace.wrapper, settings: { wal_writer_delay: '10s' } });
});
afterAll(async () => {
  await postgres.stop();
  await trace[Symbol.asyncDispose]();
});

describe('power loss', () => {
  it.each(ENGINES)('D1: on %s no commit is acked before a sync of the disk', async (engine) => {
    const traced = engine === 'sqlite' ? await traceSqlite(DOSE) : await tracePostgres(trace, postgres.url, DOSE);
    report(`power loss, ${engine}`, traced);
    expect(traced.lockstep.commits).toBe(DOSE.steps);
    expect(traced.lockstep.syncs).toBeGreaterThanOrEqual(DOSE.steps);
    const shared = engine === 'postgres' ? LANES : 1;
    expect(traced.together.syncs * shared).toBeGreaterThanOrEqual(traced.together.commits);
    expect(traced.together.acked).toBeGreaterThanOrEqual(DOSE.steps * DOSE.writers);
    expect(traced.mergedRows).toBeGreaterThan(0);
  });

  it('negative control of D1: the count detects commits that do not wait for the disk', async () => {
    const traced = await tracePostgres(trace, postgres.url, { ...DOSE, sabotage: commitWithoutWaiting });
    report('power loss, control without synchronous_commit', traced);
    expect(traced.lockstep.syncs).toBeLessThan(DOSE.steps);
  });
});

describe('a Postgres whose settings would lose commits', () => {
  let database: TestDatabase;

  beforeAll(async () => {
    database = await createPostgresDatabase(postgres.url);
  });

  /** Changes a setting of the server. Connections that are opened afterwards have the new value. */
  async function alter(name: string, change: string, value: string): Promise<void> {
    await asOwner(database, async (client) => {
      await client.query(`alter system ${change}`);
      await client.query('select pg_reload_conf()');
    });
    const shown = () => asOwner(database, async (client) => (await client.query(`show ${name}`)).rows);
    await expect.poll(shown, { interval: 5 }).toEqual([{ [name]: value }]);
  }

  it.each(['fsync', 'synchronous_commit', 'full_page_writes'])(
    'D1: is refused at start with %s = off',
    async (name) => {
      await alter(name, `set ${name} = off`, 'off');
      await expect(spawnServer({ database: database.url })).rejects.toThrow(`${name} = off`);
      await alter(name, `reset ${name}`, 'on');
    },
  );

  it('D1: is accepted once its settings are safe', async () => {
    await using server = await spawnServer({ database: database.url });
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
  });
});

function report(proof: string, { lockstep, together, mergedRows }: Traced): void {
  reportFigures(proof, {
    'acked one by one': lockstep.acked,
    'commits of these': lockstep.commits,
    'syncs of these': lockstep.syncs,
    'acked together': together.acked,
    'commits of these together': together.commits,
    'syncs of these together': together.syncs,
    'rows that were merged': mergedRows,
  });
}
