import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Pool } from '../../src/store/postgres/pool.ts';
import { Hosts } from '../../src/store/postgres_access/hosts.ts';
import { createDatabase, type TestDatabase } from '../support/database.ts';

describe('a busy Postgres', () => {
  let database: TestDatabase;
  let pool: Pool;
  beforeEach(async () => {
    database = await createDatabase('postgres');
    const onLost = () => undefined;
    pool = new Pool({ hosts: new Hosts(database.url), poolSize: 2, namedStatements: true, bounded: true, onLost });
  });
  afterEach(async () => {
    await pool?.end();
    await database?.drop();
  });

  it('A1: a call that waits for a connection longer than the silence limit gets it, as long as others get answers', async () => {
    const ends = await Promise.all(
      [1, 2, 3, 4, 5, 6, 7, 8].map(async (attempt) => {
        const lease = await pool.lease();
        await lease.query('select pg_sleep(1.5)');
        lease.release();
        return attempt;
      }),
    );
    expect(ends).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
  });

  it('A1: a statement that takes longer than the silence limit is answered, even without other statements', async () => {
    const lease = await pool.lease();
    const { rows } = await lease.query('select pg_sleep(6), 1 as one');
    lease.release();
    expect(rows).toMatchObject([{ one: 1 }]);
  });
});
