import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import pg from 'pg';
import { startPgbouncer } from './pgbouncer.ts';

export type Engine = 'sqlite' | 'postgres';

const { TEST_ENGINES = 'sqlite,postgres' } = process.env;

/**
 * The engines of this test, for `describe.each(ENGINES)`: a test of one engine must hold on the other. They are both
 * unless the configuration of vitest chooses. Titles say `on %s`, by which a run on Postgres finds its tests.
 */
export const ENGINES = TEST_ENGINES.split(',') as readonly Engine[];

/** For tests that need Postgres, whose titles say `on postgres`: `it.runIf(ON_POSTGRES)`. */
export const ON_POSTGRES = ENGINES.includes('postgres');

export interface TestDatabase {
  readonly engine: Engine;
  /** The value of `--database`. On Postgres it names a role that may only connect and create a schema. */
  readonly url: string;
  /** The same without the pooler, which keeps no session. Undefined: there is none. */
  readonly directUrl?: string;
  /** Postgres: the same database as its owner, for tests that end backends or change settings. SQLite: the same url. */
  readonly adminUrl: string;
  /** Removes it with all its content, even while connections are open. Safe to call twice. */
  drop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A fresh, empty database: a file in a folder of its own, or a database on the Postgres of this test run. */
export async function createDatabase(engine: Engine): Promise<TestDatabase> {
  return engine === 'sqlite' ? createFile() : createPostgresDatabase(postgresUrl());
}

/** The Postgres server of this test run: TEST_DATABASE_URL, or the one that the run's global setup started. */
export function postgresUrl(): string {
  if (!ON_POSTGRES) throw new Error('This run has Postgres for test/store only: see ENGINES and ON_POSTGRES');
  const url = process.env.TEST_DATABASE_URL;
  if (url === undefined || url === '') {
    throw new Error('TEST_DATABASE_URL is not set: tests on Postgres run under vitest, whose global setup starts one');
  }
  return url;
}

async function createFile(): Promise<TestDatabase> {
  const dir = await mkdtemp(path.join(os.tmpdir(), 'anabranch-sqlite-'));
  const url = `sqlite:${path.join(dir, 'data.db')}`;
  const drop = () => rm(dir, { recursive: true, force: true });
  return { engine: 'sqlite', url, adminUrl: url, drop, [Symbol.asyncDispose]: drop };
}

/** A role of Postgres that may log in. */
export interface Login {
  readonly user: string;
  readonly password: string;
}

function newLogin(): Login {
  return { user: newName(), password: randomBytes(12).toString('hex') };
}

function newName(): string {
  return `anabranch_test_${randomBytes(8).toString('hex')}`;
}

/** A fresh database and its role, which has the same name, on the given server, whose user may create both. */
export async function createPostgresDatabase(server: string, login: Login = newLogin()): Promise<TestDatabase> {
  const { user, password } = login;
  await administer(server, [
    `CREATE ROLE ${user} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '${password}'`,
    `CREATE DATABASE ${user}`,
    ...grantOnly(user, login),
  ]);
  return postgresDatabase(server, user, login, () => dropPostgresDatabase(server, login));
}

/** Names the database that the tests of this run copy, and its role. Called once for a run, before its first test. */
export function nameTemplate(): void {
  const { user, password } = newLogin();
  process.env.TEST_TEMPLATE = `${user}:${password}`;
}

export function templateLogin(): Login {
  const [user, password] = process.env.TEST_TEMPLATE?.split(':') ?? [];
  if (user === undefined || password === undefined)
    throw new Error('TEST_TEMPLATE is set by the global setup of vitest');
  return { user, password };
}

export function dropPostgresDatabase(server: string, { user }: Login): Promise<void> {
  return administer(server, [`DROP DATABASE IF EXISTS ${user} WITH (FORCE)`, `DROP ROLE IF EXISTS ${user}`]);
}

/**
 * A copy of the database that has this role's name, with TEST_POOLER behind a pooler. The role owns what is in it.
 * Files are copied, which takes half of the CPU time of writing all pages to the log.
 */
export async function copyPostgresDatabase(server: string, login: Login): Promise<TestDatabase> {
  const name = newName();
  const copy = `CREATE DATABASE ${name} TEMPLATE ${login.user} STRATEGY FILE_COPY`;
  await administer(server, [copy, ...grantOnly(name, login)]);
  const copied = postgresDatabase(server, name, login, () =>
    administer(server, [`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`]),
  );
  return process.env.TEST_POOLER ? behindPooler(copied) : copied;
}

function grantOnly(database: string, { user }: Login): string[] {
  return [`REVOKE ALL ON DATABASE ${database} FROM PUBLIC`, `GRANT CONNECT, CREATE ON DATABASE ${database} TO ${user}`];
}

function postgresDatabase(server: string, name: string, login: Login, drop: () => Promise<void>): TestDatabase {
  return {
    engine: 'postgres',
    url: withDatabase(server, name, login),
    adminUrl: withDatabase(server, name),
    drop,
    [Symbol.asyncDispose]: drop,
  };
}

/** The same database through a pgbouncer in transaction mode. */
export async function behindPooler(database: TestDatabase): Promise<TestDatabase> {
  const pooler = await startPgbouncer(database.url, { poolSize: 10 });
  const drop = async () => {
    await pooler.stop();
    await database.drop();
  };
  return { ...database, url: pooler.url, directUrl: database.url, drop, [Symbol.asyncDispose]: drop };
}

async function administer(server: string, statements: readonly string[]): Promise<void> {
  const client = new pg.Client({ connectionString: server, connectionTimeoutMillis: 10_000 });
  client.on('error', () => undefined); // a dropped connection also fails the query that waits on it, which is reported
  await client.connect();
  try {
    for (const statement of statements) await client.query(statement);
  } finally {
    await client.end();
  }
}

function withDatabase(server: string, name: string, as?: Login): string {
  const url = new URL(server);
  url.pathname = `/${name}`;
  if (as) {
    url.username = as.user;
    url.password = as.password;
  }
  return url.href;
}
