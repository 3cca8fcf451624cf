import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter, reasonOf } from '../../src/client/index.ts';
import { trajectoryHint } from '../../src/domain/change.ts';
import { type Store, StoreOpenError } from '../../src/store/contract/store.ts';
import { openStore } from '../../src/store/open.ts';
import { Pool } from '../../src/store/postgres/pool.ts';
import { Hosts } from '../../src/store/postgres_access/hosts.ts';
import { Scene } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { createDatabase, type TestDatabase } from '../support/database.ts';
import { requireIntact } from '../support/intact.ts';
import { type Pgbouncer, startPgbouncer } from '../support/pgbouncer.ts';
import { wordStep } from '../support/steps.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { reportFigures } from './figures.ts';
import { countMergedRows } from './spawn-merging.ts';

/** Fewer than the connections of one server, so that every transaction may get another one. */
const POOL_SIZE = 3;
const LEAKED = ['statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'timezone', 'bytea_output'];

let database: TestDatabase;
let pooler: Pgbouncer;
beforeAll(async () => {
  database = await createDatabase('postgres');
  pooler = await startPgbouncer(database.url, { poolSize: POOL_SIZE });
});
afterAll(async () => {
  await pooler.stop();
  await database.drop();
});

function openPool(url: string, onForgotten: (error: unknown) => void = () => {}): Pool {
  return new Pool({
    hosts: new Hosts(url),
    poolSize: 4,
    namedStatements: true,
    bounded: true,
    onLost: () => {},
    onForgotten,
  });
}

/** Starts a server behind the pooler that merges segments all the time. */
function startPooled(): Promise<TestServer> {
  return startTestServer({ database: { ...database, url: pooler.url }, settings: { mergeIdleMs: 10 } });
}

/** Uses most kinds of statements, and checks every answer. */
async function work(client: AnabranchClient, name: string): Promise<void> {
  const { trajectory } = await client.trajectories.createTrajectory({ name });
  const trajectoryId = trajectory!.id;
  const writer = await openWriter(client, { trajectoryId });
  for (let i = 0; i < 10; i += 1) {
    const data = Buffer.from(`state ${name} ${i}`);
    await writer.append({ observations: [{ content: { text: `${name} ${i}` } }], reward: i, states: [{ data }] });
  }
  await writer.close();
  const texts: string[] = [];
  for await (const { steps } of client.trajectories.readSteps({ trajectoryId })) {
    texts.push(...steps.map((step) => step.observations[0]!.content!.text ?? ''));
  }
  expect(texts).toEqual(Array.from({ length: 10 }, (_, i) => `${name} ${i}`));
  const { step } = await client.trajectories.getCheckpoint({ trajectoryId, atOrBefore: 4n });
  expect(Buffer.from(step!.states[0]!.data!).toString()).toBe(`state ${name} 4`);
  const branch = await client.trajectories.branchTrajectory({ trajectoryId, stepNumber: 3n, name: `${name} branch` });
  expect(branch.trajectory!.nextStepNumber).toBe(4n);
  await client.trajectories.deleteTrajectory({ trajectoryId: branch.trajectory!.id });
}

async function workOnRuns(client: AnabranchClient, name: string): Promise<void> {
  const { run } = await client.runs.createRun({ name });
  const points = Array.from({ length: 50 }, (_, i) => ({ key: name, metricStep: BigInt(i), value: i }));
  await client.runs.logMetrics({ runId: run!.id, points });
  const keys: string[] = [];
  for await (const { series } of client.runs.readMetrics({ runIds: [run!.id], maxPoints: 10 })) {
    keys.push(...series.map(({ key }) => key));
  }
  expect(keys).toEqual([name]);
  expect((await client.runs.getRun({ runId: run!.id })).run!.name).toBe(name);
}

describe('A9: Postgres behind pgbouncer in transaction mode', () => {
  it('serves two servers that prepare different statements first', async () => {
    await using first = await startPooled();
    await using second = await startPooled();
    const [one, other] = [connectClient({ address: first.url }), connectClient({ address: second.url })];
    await work(one, 'first work');
    await workOnRuns(other, 'second work');
    const jobs = Array.from({ length: 8 }, (_, i) => [
      work(one, `one ${i}`),
      work(other, `other ${i}`),
      workOnRuns(one, `run of one ${i}`),
      workOnRuns(other, `run of other ${i}`),
    ]);
    await Promise.all(jobs.flat());
    const sql = await outsideSql(database);
    await expect.poll(() => countMergedRows(sql), { timeout: 10_000 }).toBeGreaterThan(0);
    await sql.close();
    await requireIntact(one);
    one.close();
    other.close();
    const figures = {
      servers: 2,
      'connections to Postgres': POOL_SIZE,
      'jobs done and checked': jobs.flat().length + 2,
    };
    reportFigures('two servers behind pgbouncer', figures);
  });

  it('keeps the settings of a server from other users of its connections', async () => {
    await using server = await startPooled();
    const client = connectClient({ address: server.url });
    await Promise.all(Array.from({ length: 10 }, (_, i) => work(client, `settings ${i}`)));
    await requireIntact(client);
    client.close();
    const direct = await settingsOf([new pg.Client({ connectionString: database.url })]);
    const clients = Array.from({ length: POOL_SIZE }, () => new pg.Client({ connectionString: pooler.url }));
    for (const found of await settingsOf(clients)) expect(found).toEqual(direct[0]);
  });

  it('enforces the time-outs of a server, and returns values in the expected format', async () => {
    const pool = openPool(pooler.url);
    const lease = await pool.lease();
    const shown = async (setting: string) => (await lease.query(`show ${setting}`)).rows[0][setting];
    const settings = ['statement_timeout', 'lock_timeout', 'bytea_output', 'default_transaction_isolation'];
    expect(await Promise.all(settings.slice(0, 3).map(shown))).toEqual(['30s', '3s', 'hex']);
    await lease.query('begin');
    expect(await Promise.all(settings.slice(0, 2).map(shown))).toEqual(['30s', '3s']);
    await lease.unbound();
    expect(await shown('statement_timeout')).toBe('0');
    await lease.query('commit');
    expect(await shown('statement_timeout')).toBe('30s');
    lease.release();
    await pool.end();
  });

  it('reports a failed commit as the failure of its single statement', async () => {
    const pool = openPool(pooler.url);
    const lease = await pool.lease();
    await lease.query('create schema own');
    await lease.query('create table own.deferred (id int primary key deferrable initially deferred)');
    await lease.query('insert into own.deferred values ($1)', [1]);
    await expect(lease.query('insert into own.deferred values ($1)', [1])).rejects.toThrow('a row with this key');
    expect((await lease.query('select id from own.deferred')).rows).toEqual([{ id: 1 }]);
    lease.release();
    await pool.end();
  });

  it('A10: resets what an earlier user left in a session, and keeps what an operator set', async () => {
    /** Leaves a setting in all connections to Postgres. Returns whether none of them was lost meanwhile. */
    const leave = async (setting: string): Promise<boolean> => {
      const clients = Array.from({ length: POOL_SIZE }, () => new pg.Client({ connectionString: pooler.url }));
      try {
        for (const client of clients) {
          client.on('error', () => undefined); // the statement fails as well
          await client.connect();
          await client.query('begin');
        }
        for (const client of clients) await client.query(`commit; set default_transaction_read_only = ${setting}`);
        return true;
      } catch {
        return false;
      } finally {
        await Promise.all(clients.map((client) => client.end().catch(() => undefined)));
      }
    };
    const leaveEverywhere = (setting: string) => expect.poll(() => leave(setting), { timeout: 10_000 }).toBe(true);
    await leaveEverywhere('on');
    await using server = await startPooled();
    const client = connectClient({ address: server.url });
    await Promise.all(Array.from({ length: 6 }, (_, i) => work(client, `after another user ${i}`)));
    const admin = new pg.Client({ connectionString: database.adminUrl });
    await admin.connect();
    const name = new URL(database.url).pathname.slice(1);
    await admin.query(`alter role ${name} set default_transaction_read_only = on`);
    // As RECONNECT of pgbouncer does: the default holds for new sessions.
    const endSessions = () =>
      admin.query('select pg_terminate_backend(pid) from pg_stat_activity where usename = $1', [name]);
    await endSessions();
    await leaveEverywhere('off');
    const reason = () =>
      client.trajectories.createTrajectory({}).then(
        () => undefined,
        (error: unknown) => reasonOf(error),
      );
    await expect.poll(reason, { timeout: 10_000 }).toBe('DATABASE_READ_ONLY');
    await leaveEverywhere('off');
    expect(await reason()).toBe('DATABASE_READ_ONLY');
    await admin.query(`alter role ${name} reset default_transaction_read_only`);
    await endSessions();
    await expect.poll(reason, { timeout: 10_000 }).toBeUndefined();
    await admin.end();
    client.close();
  });
});

describe('the way to Postgres around a pooler', () => {
  /** Opens a store, with the lines that it logged as warnings. */
  async function opened(url: string, directUrl?: string) {
    const warnings: string[] = [];
    const warn = (_details: object, message: string) => void warnings.push(message);
    const logger = { info() {}, warn, error: warn };
    const store = await openStore({ engine: 'postgres', url, ...(directUrl && { directUrl }) }, { logger });
    return { store, warnings };
  }

  const refusal = (opening: Promise<{ readonly store: Store }>) =>
    opening.then(
      async ({ store }) => {
        await store.close();
        return '';
      },
      (error: unknown) => (error instanceof StoreOpenError ? error.message : error),
    );

  it('A9: without a direct database, an instance says once that it polls, and followers get writes of others', async () => {
    const { store, warnings } = await opened(pooler.url);
    expect(store.hearsOthers).toBe(false);
    expect(warnings.filter((each) => each.includes('ANABRANCH_DIRECT_DATABASE'))).toHaveLength(1);
    await store.close();
    await using reading = await startPooled();
    await using writing = await startPooled();
    await deliversWithin(reading, writing, 20_000);
  });

  it('A9: with a direct database, an instance behind a pooler hears others', async () => {
    const { store, warnings } = await opened(pooler.url, database.url);
    expect([store.hearsOthers, warnings]).toEqual([true, []]);
    const { store: other } = await opened(pooler.url, database.url);
    const heard: unknown[] = [];
    const stop = store.onChange((hint) => heard.push(hint));
    const scene = new Scene(other);
    const made = await scene.create();
    await scene.append(made, [wordStep(0n, 'a')]);
    await expect.poll(() => heard, { timeout: 10_000 }).toContain(trajectoryHint(made.ref.key));
    stop();
    await other.close();
    await store.close();
  });

  it('refuses a direct database that is a pooler or another database, and a pooler in statement mode', async () => {
    expect(await refusal(opened(pooler.url, pooler.url))).toContain('is behind a pooler too');
    await using another = await createDatabase('postgres');
    expect(await refusal(opened(pooler.url, another.url))).toContain('is another database');
    await using statements = await startPgbouncer(database.url, { poolSize: POOL_SIZE, mode: 'statement' });
    for (const direct of [undefined, database.url])
      expect(await refusal(opened(statements.url, direct))).toContain('statement mode');
  });

  it('A1: serves again after a pooler was restarted under load, and nothing that was acked is missing', async () => {
    let own = await startPgbouncer(database.url, { poolSize: POOL_SIZE });
    await using server = await startTestServer({ database: { ...database, url: own.url } });
    const client = connectClient({ address: server.url });
    const acked = new Map<string, number>();
    const writing = Array.from({ length: 4 }, async (_, i) => {
      const { trajectory } = await client.trajectories.createTrajectory({ name: `restarted ${i}` });
      const trajectoryId = trajectory!.id;
      const writer = await openWriter(client, { trajectoryId });
      for (let step = 0; step < 60; step += 1) {
        await writer.append({ observations: [{ content: { text: `${step}` } }] });
        acked.set(trajectoryId, step + 1);
        if (i === 0 && step === 20) {
          const { port } = own;
          await own.stop();
          own = await startPgbouncer(database.url, { poolSize: POOL_SIZE, port });
        }
      }
      await writer.close();
    });
    await Promise.all(writing);
    for (const [trajectoryId, steps] of acked) {
      const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
      expect([steps, trajectory!.nextStepNumber]).toEqual([60, 60n]);
    }
    await requireIntact(client);
    client.close();
    await own.stop();
  });
});

/** Requires that a follower on one server gets what is written on another. */
async function deliversWithin(reading: TestServer, writing: TestServer, timeout: number): Promise<void> {
  const [reader, author] = [connectClient({ address: reading.url }), connectClient({ address: writing.url })];
  const { trajectory } = await author.trajectories.createTrajectory({});
  const trajectoryId = trajectory!.id;
  const texts: string[] = [];
  const leaving = new AbortController();
  const following = (async () => {
    const read = reader.trajectories.readSteps({ trajectoryId, follow: true }, { signal: leaving.signal });
    for await (const { steps } of read) texts.push(...steps.map((step) => step.observations[0]!.content!.text ?? ''));
  })().catch(() => undefined);
  const writer = await openWriter(author, { trajectoryId });
  for (const text of ['a', 'b', 'c']) {
    await writer.append({ observations: [{ content: { text } }] });
    await expect.poll(() => texts.at(-1), { timeout }).toBe(text);
  }
  await writer.close();
  leaving.abort();
  await following;
  reader.close();
  author.close();
}

/**
 * The settings of as many connections to Postgres as there are clients: all of them are in a transaction at the same
 * time.
 */
async function settingsOf(clients: readonly pg.Client[]): Promise<Record<string, string>[]> {
  const found: Record<string, string>[] = [];
  for (const client of clients) {
    await client.connect();
    await client.query('begin');
    const columns = LEAKED.map((name) => `current_setting('${name}') as ${name}`).join(', ');
    found.push((await client.query(`select ${columns}`)).rows[0]);
  }
  for (const client of clients) await client.end();
  return found;
}
