import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { StatementNames } from '../../src/store/postgres/connection.ts';
import { Pool } from '../../src/store/postgres/pool.ts';
import { Hosts } from '../../src/store/postgres_access/hosts.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';

describe('A9: names of prepared statements', () => {
  it('are the same for the same text in every process, whatever was named before', () => {
    const names = new StatementNames();
    names.of('select 1');
    expect(names.of('select $1::int')).toBe(new StatementNames().of('select $1::int'));
    expect(names.of('select $1::int')).toBe('anabranch_64094a521aefc65c2da93d0e10f1e67b');
  });

  it('differ for different texts, and fit into the 63 bytes that Postgres keeps', () => {
    const names = new StatementNames();
    const given = Array.from({ length: 500 }, (_, i) => names.of(`select ${i}`) ?? '');
    expect(new Set(given).size).toBe(500);
    for (const name of given) expect(name).toMatch(/^[a-z0-9_]{1,63}$/);
  });

  it('are given to 500 statements; later ones are unnamed', () => {
    const names = new StatementNames();
    for (let i = 0; i < 500; i += 1) names.of(`select ${i}`);
    expect(names.of('select 500')).toBeUndefined();
    expect(names.of('select 499')).toBeDefined();
  });
});

describe('A9: a pool of Postgres whose named statements are lost', () => {
  let database: TestDatabase;
  let pool: Pool;
  let forgotten: unknown[];
  beforeEach(async () => {
    database = await createMigratedDatabase('postgres');
    forgotten = [];
    const onForgotten = (error: unknown) => forgotten.push(error);
    // A pool of one connection, so that the next call gets the same one.
    const options = { hosts: new Hosts(database.url), poolSize: 1, namedStatements: true, bounded: true };
    pool = new Pool({ ...options, onLost: () => undefined, onForgotten });
  });
  afterEach(async () => {
    await pool.end();
    await database.drop();
  });

  it('sends unnamed statements from then on, and logs it once', async () => {
    const lease = await pool.lease();
    const ask = () => lease.query('select $1::int as answer', [42]);
    const named = async () => (await lease.query('select name from pg_prepared_statements')).rows;
    await ask();
    expect(await named()).toHaveLength(1);
    await lease.query('deallocate all');
    const error = await ask().catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: '26000' });
    expect([pool.forget(error), pool.forget(error)]).toEqual([true, true]);
    expect(forgotten).toEqual([error]);
    expect((await ask()).rows).toEqual([{ answer: 42 }]);
    expect(await named()).toEqual([]);
    lease.release();
  });

  it('keeps the names after any other error', async () => {
    const lease = await pool.lease();
    const error = await lease.query('select 1 / $1::int', [0]).catch((thrown: unknown) => thrown);
    expect(pool.forget(error)).toBe(false);
    await lease.query('select $1::int', [1]);
    expect((await lease.query('select name from pg_prepared_statements')).rows).toHaveLength(2);
    expect(forgotten).toEqual([]);
    lease.release();
  });
});
