import { access } from 'node:fs/promises';
import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { createDatabase, ON_POSTGRES, postgresUrl } from './database.ts';

describe('createDatabase', () => {
  it.runIf(ON_POSTGRES)('creates, on Postgres, a role that may only connect and create a schema', async () => {
    await using database = await createDatabase('postgres');
    const client = new pg.Client(database.url);
    await client.connect();
    await client.query('CREATE SCHEMA anabranch');
    await client.query('CREATE TABLE anabranch.t (x int)');
    await expect(client.query('CREATE TABLE public.t (x int)')).rejects.toThrow(/permission denied/);
    await expect(client.query('CREATE DATABASE other')).rejects.toThrow(/permission denied/);
    await expect(client.query('SET fsync = off')).rejects.toThrow();
    await client.end();
  });

  it.runIf(ON_POSTGRES)(
    'sorts text on Postgres by the rules of a language, so that code which relies on byte order fails',
    async () => {
      await using database = await createDatabase('postgres');
      const client = new pg.Client(database.url);
      await client.connect();
      const { rows } = await client.query(`SELECT x FROM (VALUES ('B'), ('a')) AS t (x) ORDER BY x`);
      await client.end();
      // A server named by TEST_DATABASE_URL has its own collation.
      const ours = postgresUrl().includes('anabranch-pg-');
      if (ours) expect(rows.map((row) => row.x)).toEqual(['a', 'B']);
    },
  );

  it.runIf(ON_POSTGRES)(
    'leaves nothing on Postgres after the database is dropped, even while a connection is open',
    async () => {
      const database = await createDatabase('postgres');
      const client = new pg.Client(database.url);
      const cut = new Promise((resolve) => client.on('error', resolve));
      await client.connect();
      await database.drop();
      await cut;
      await database.drop();
      const admin = new pg.Client(postgresUrl());
      await admin.connect();
      const name = new URL(database.url).pathname.slice(1);
      const left = await admin.query(
        'SELECT datname FROM pg_database WHERE datname = $1 UNION ALL SELECT rolname FROM pg_roles WHERE rolname = $1',
        [name],
      );
      await admin.end();
      expect(left.rows).toEqual([]);
    },
  );

  it('gives SQLite a folder of its own, which is removed with the database', async () => {
    const database = await createDatabase('sqlite');
    const folder = database.url.replace(/^sqlite:(.*)\/data\.db$/, '$1');
    await access(folder);
    await database.drop();
    await expect(access(folder)).rejects.toThrow(/ENOENT/);
  });
});
