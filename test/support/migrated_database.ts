import { existsSync } from 'node:fs';
import { copyFile, rename } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { pino } from 'pino';
import { type Database, openStore } from '../../src/store/open.ts';
import {
  copyPostgresDatabase,
  createDatabase,
  createPostgresDatabase,
  type Engine,
  type Login,
  postgresUrl,
  type TestDatabase,
  templateLogin,
} from './database.ts';

/**
 * A fresh database that has the schema and no data: a copy of one that is migrated once for the whole run, by the first
 * test that needs it. Copies have the key of tokens in common, and on Postgres one role. For tests of the migrations,
 * of roles and of empty databases there is `createDatabase`.
 */
export async function createMigratedDatabase(engine: Engine): Promise<TestDatabase> {
  return engine === 'sqlite' ? copyMigratedFile() : copyMigratedPostgresDatabase(postgresUrl());
}

async function copyMigratedFile(): Promise<TestDatabase> {
  const database = await createDatabase('sqlite');
  await copyFile(await migratedFile(), pathOf(database));
  return database;
}

/** Processes that need the file at the same time migrate one each. A rename replaces a file as a whole. */
async function migratedFile(): Promise<string> {
  const file = path.join(os.tmpdir(), 'migrated.db');
  if (existsSync(file)) return file;
  await using database = await createDatabase('sqlite');
  await migrate({ engine: 'sqlite', path: pathOf(database) });
  await rename(pathOf(database), file);
  return file;
}

function pathOf(database: TestDatabase): string {
  return database.url.replace(/^sqlite:/, '');
}

let template: Promise<void> | undefined;

async function copyMigratedPostgresDatabase(server: string): Promise<TestDatabase> {
  const login = templateLogin();
  template ??= migrateTemplate(server, login);
  await template;
  return copyPostgresDatabase(server, login);
}

/** One process migrates the template; others wait for it. */
async function migrateTemplate(server: string, login: Login): Promise<void> {
  const client = new pg.Client(server);
  await client.connect();
  try {
    await client.query('SELECT pg_advisory_lock(hashtext($1))', [login.user]);
    const { rowCount } = await client.query('SELECT 1 FROM pg_database WHERE datname = $1', [login.user]);
    if (rowCount !== 0) return;
    const template = await createPostgresDatabase(server, login);
    await migrate({ engine: 'postgres', url: template.url });
  } finally {
    await client.end();
  }
}

async function migrate(database: Database): Promise<void> {
  const store = await openStore(database, { logger: pino({ level: 'silent' }) });
  await store.close();
}
