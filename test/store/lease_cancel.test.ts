import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Pool } from '../../src/store/postgres/pool.ts';
import { Hosts } from '../../src/store/postgres_access/hosts.ts';
import { createDatabase, type TestDatabase } from '../support/database.ts';
import { outsideSql } from './sql.ts';

/** An hour: longer than any test, so that only a cancel request ends the statement. */
const FOREVER = 'select pg_sleep(3600)';

describe('A6: a connection used by one call, on postgres', () => {
  let database: TestDatabase;
  let pool: Pool;
  beforeEach(async () => {
    database = await createDatabase('postgres');
    const options = { hosts: new Hosts(database.url), namedStatements: true, bounded: false };
    // A pool of one connection, so that the next call gets the same one.
    pool = new Pool({ ...options, poolSize: 1, onLost: () => undefined });
  });
  afterEach(async () => {
    await pool.end();
    await database.drop();
  });

  const sleepers = async (): Promise<number> => {
    const sql = await outsideSql(database);
    try {
      const text = `select count(*)::int as count from pg_stat_activity where query like '%pg_sleep%' and state = 'active' and pid <> pg_backend_pid()`;
      return Number((await sql.rows(text))[0]?.count);
    } finally {
      await sql.close();
    }
  };

  it('ends its statement in the database when the call ends, and then serves the next call', async () => {
    const controller = new AbortController();
    const reason = new Error('the deadline has passed');
    const lease = await pool.lease(controller);
    const sleeping = lease.query(FOREVER).catch((error: unknown) => error);
    await expect.poll(sleepers).toBe(1);
    controller.abort(reason);
    expect(await sleeping).toBe(reason);
    lease.release();
    const next = await pool.lease();
    expect((await next.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
    next.release();
    expect(await sleepers()).toBe(0);
  });

  it('ends the statements queued behind the running one too, and stores nothing of a transaction', async () => {
    const controller = new AbortController();
    const reason = new Error('the caller has left');
    const owner = await pool.lease();
    await owner.query('create schema own');
    await owner.query('create table own.seen (n int)');
    owner.release();
    const lease = await pool.lease(controller);
    const sent = ['begin', 'insert into own.seen values (1)', FOREVER, 'insert into own.seen values (2)', 'commit'];
    const ends = sent.map((text) => lease.query(text).catch((error: unknown) => error));
    await expect.poll(sleepers).toBe(1);
    controller.abort(reason);
    const [, , sleeping] = await Promise.all(ends);
    expect(sleeping).toBe(reason);
    await expect(lease.query('select 1')).rejects.toBe(reason);
    await lease.rollback();
    lease.release();
    const next = await pool.lease();
    expect((await next.query('select n from own.seen')).rows).toEqual([]);
    next.release();
  });

  it('never applies a cancel request to the statement of the next call', async () => {
    for (let round = 0; round < 40; round += 1) {
      const controller = new AbortController();
      const lease = await pool.lease(controller);
      const reading = lease
        .query('select count(*) from generate_series(1, $1::int)', [round * 1000])
        .catch(() => undefined);
      for (let turn = 0; turn < round % 10; turn += 1) await new Promise((resolve) => setImmediate(resolve));
      controller.abort(new Error('the caller has left'));
      await reading;
      lease.release();
      const next = await pool.lease();
      const { rows } = await next.query('select count(*)::int as count from generate_series(1, 20000)');
      expect(rows).toEqual([{ count: 20_000 }]);
      next.release();
    }
  });

  it('is not waited for by a caller that has cancelled', async () => {
    const held = await pool.lease();
    const controller = new AbortController();
    const reason = new Error('the caller has left');
    const waiting = pool.lease(controller).catch((error: unknown) => error);
    controller.abort(reason);
    expect(await waiting).toBe(reason);
    held.release();
    const next = await pool.lease();
    expect((await next.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
    next.release();
  });
});
