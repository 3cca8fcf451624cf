import process from 'node:process';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SCHEMA } from '../../src/store/postgres/schema.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { readStatements } from '../support/sent_statements.ts';

/** The statements that the tests of earlier runs have sent, and those that the other files of this run have sent. */
const { STATEMENTS_EXPECTED = '', STATEMENTS_SENT = '' } = process.env;

/** Statements of migrations that only tests have: they refuse to run in a transaction, and need the tests' columns. */
const BY_ADDED_MIGRATIONS = /^\s*(?:create|drop) index concurrently\b/;

/** A statement with lists of one length. */
function shapeOf(text: string): string {
  return text
    .replaceAll(/\$\d+/g, '$')
    .replaceAll(/\$(?:,\s*\$)+/g, '$, …')
    .replaceAll(/(\((?:[^()]|\([^()]*\))*\))(?:,\s*\1)+/g, '$1, …');
}

describe('statements of the store, on postgres', () => {
  let database: TestDatabase;
  let client: pg.Client;
  beforeAll(async () => {
    database = await createMigratedDatabase('postgres');
    // A verification calls the functions of amcheck where it is installed.
    const admin = new pg.Client(database.adminUrl);
    await admin.connect();
    await admin.query('create extension amcheck; grant execute on all functions in schema public to public');
    await admin.end();
    client = new pg.Client(database.url);
    await client.connect();
    // Migrations send names without the schema.
    await client.query(`set plan_cache_mode = force_generic_plan; set search_path = ${SCHEMA}`);
  });
  afterAll(async () => {
    await client?.end();
    await database?.drop();
  });

  /** Prepares and plans a statement, without running it. */
  async function plan(text: string): Promise<void> {
    await client.query(`prepare each as ${text}`);
    const { rows } = await client.query('select cardinality(parameter_types) as count from pg_prepared_statements');
    const values = Array<string>(Number(rows[0].count)).fill('null').join();
    await client.query(`explain execute each${values === '' ? '' : `(${values})`}`);
    await client.query('deallocate each');
  }

  /** Returns why this Postgres refuses a statement, or undefined. */
  async function refusalOf(text: string): Promise<string | undefined> {
    try {
      await client.query('begin');
      // Others set parameters or drop the schema, and are undone.
      await (/^\s*(?:select|insert|update|delete|with)\b/.test(text) ? plan(text) : client.query(text));
      return undefined;
    } catch (error) {
      return `${(error as Error).message}: ${text}`;
    } finally {
      await client.query('rollback; deallocate all');
    }
  }

  it('that any test of the runs before sends are sent by a test on this one, or else prepared and planned by it', async () => {
    const sentHere = new Set([...readStatements(STATEMENTS_SENT)].map(shapeOf));
    const expected = new Map([...readStatements(STATEMENTS_EXPECTED)].map((text) => [shapeOf(text), text]));
    const elsewhere = [...expected]
      .filter(([shape, text]) => !sentHere.has(shape) && !BY_ADDED_MIGRATIONS.test(text))
      .map(([, text]) => text);
    const refusals: (string | undefined)[] = [];
    for (const text of elsewhere) refusals.push(await refusalOf(text));
    expect(refusals.filter((each) => each !== undefined)).toEqual([]);
    expect(elsewhere.length).toBeGreaterThan(100);
    expect(sentHere.size).toBeGreaterThan(100);
  });
});
