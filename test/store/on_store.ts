import process from 'node:process';
import { pino } from 'pino';
import { afterAll, beforeAll, describe } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { type Database, openStore } from '../../src/store/open.ts';
import { ENGINES, type Engine, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { Scene } from './scene.ts';
import { type OutsideSql, outsideSql, sqlitePath } from './sql.ts';

export const logger = pino({ level: process.env.TEST_LOG_LEVEL ?? 'silent' });

/** The database for `openStore`. */
export function openedAs(database: Pick<TestDatabase, 'engine' | 'url' | 'directUrl'>): Database {
  const { engine, url, directUrl } = database;
  return engine === 'sqlite'
    ? { engine, path: sqlitePath(database) }
    : { engine, url, ...(directUrl && { directUrl }) };
}

/** Opens a store on the database as the service does; opening runs the migrations. */
export function openOn(database: Parameters<typeof openedAs>[0]): Promise<Store> {
  return openStore(openedAs(database), { logger });
}

/** The environment for the tests of one noun on one engine: a database, and in it a namespace for each test. */
export interface OnStore {
  readonly engine: Engine;
  readonly database: TestDatabase;
  readonly store: Store;
  readonly sql: OutsideSql;
  /** Closes the store, as a server does that ends, and opens it again. Scenes created before keep the closed store. */
  reopen(): Promise<void>;
  scene(): Scene;
}

/** The conformance suite: the same tests on every engine. */
export function describeStore(noun: string, define: (on: OnStore) => void): void {
  describeStoreOn(ENGINES, noun, define);
}

/** Tests that apply to some engines only. */
export function describeStoreOn(engines: readonly Engine[], noun: string, define: (on: OnStore) => void): void {
  describe.each(engines)(`${noun}, on %s`, (engine) => {
    let database: TestDatabase;
    let store: Store;
    let sql: OutsideSql;
    beforeAll(async () => {
      database = await createMigratedDatabase(engine);
      store = await openOn(database);
      sql = await outsideSql(database);
    });
    afterAll(async () => {
      await sql?.close();
      await store?.close();
      await database?.drop();
    });
    define({
      engine,
      get database() {
        return database;
      },
      get store() {
        return store;
      },
      get sql() {
        return sql;
      },
      async reopen() {
        await store.close();
        store = await openOn(database);
      },
      scene: () => new Scene(store),
    });
  });
}

/** Returns the error with which the opening of a store is refused. */
export async function refusedOpen(opening: Promise<Store>): Promise<Error> {
  try {
    await (await opening).close();
  } catch (error) {
    return error as Error;
  }
  throw new Error('the store was opened');
}
