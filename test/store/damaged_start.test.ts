import { closeSync, openSync, truncateSync, writeSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { describe, expect, it } from 'vitest';
import { runCli } from '../cli/run_cli.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { openOn } from './on_store.ts';
import { outsideSql, sqlitePath } from './sql.ts';

/** Starts a server, verifies and rewrites, each of which must end with one line that names the remedy. */
async function expectOneLine(url: string, cause: RegExp, commands = ['serve', 'verify']): Promise<void> {
  for (const command of commands) {
    const { code, stdout, stderr } = await runCli(
      [command, '--database', url, '--log-level', 'silent'].slice(0, command === 'serve' ? 5 : 3),
    );
    expect([code, stdout]).toEqual([1, '']);
    expect(stderr).toMatch(cause);
    expect(stderr).toMatch(/Restore a backup|Name another file|set --database/);
    // The URL of the test has a password, of which commands warn.
    const lines = stderr.trimEnd().split('\n');
    expect(lines.filter((line) => !/process list|password/.test(line))).toHaveLength(1);
  }
}

describe('a damaged SQLite file is reported in one line when it is opened', () => {
  const overwrite = (path: string, position: number, bytes: number) => {
    const file = openSync(path, 'r+');
    writeSync(file, Buffer.alloc(bytes, 0xff), 0, bytes, position);
    closeSync(file);
  };
  const changed = (path: string, ...statements: string[]) => {
    const database = new DatabaseSync(path, { defensive: false });
    for (const statement of statements) database.exec(statement);
    database.close();
  };
  const rootOf = (path: string, name: string) => {
    const database = new DatabaseSync(path, { readOnly: true });
    const row = database.prepare('select rootpage from sqlite_schema where name = ?').get(name);
    database.close();
    return Number(row!.rootpage);
  };
  it.each<[string, (path: string) => void, RegExp]>([
    ['another magic', (path) => overwrite(path, 0, 16), /not a SQLite database/],
    ['a damaged first page', (path) => overwrite(path, 100, 500), /is damaged: .*malformed/],
    ['a cut file', (path) => truncateSync(path, 8192), /is damaged: .*malformed/],
    ['a cut first page', (path) => truncateSync(path, 2000), /is damaged|cannot be opened|not a SQLite/],
    [
      'a malformed schema',
      (path) =>
        changed(
          path,
          'pragma writable_schema = on',
          `update sqlite_schema set sql = 'create nonsense' where name = 'runs'`,
        ),
      /is damaged: malformed database schema/,
    ],
    [
      'a malformed schema with control characters in its name',
      (path) =>
        changed(
          path,
          'pragma writable_schema = on',
          `update sqlite_schema set name = 'a' || char(10) || char(27) || 'b', sql = 'create nonsense' where name = 'runs'`,
        ),
      /is damaged: malformed database schema/,
    ],
    [
      'a damaged page of a table that the start reads',
      (path) => overwrite(path, (rootOf(path, 'sqlite_autoindex_kysely_migration_1') - 1) * 4096, 64),
      /is damaged: .*malformed/,
    ],
    ['a missing table', (path) => changed(path, 'drop table runs'), /is damaged: it has no table runs/],
    [
      'no list of migrations',
      (path) => changed(path, 'drop table kysely_migration'),
      /is damaged: the list of its migrations is missing/,
    ],
  ])('%s', async (_, damage, cause) => {
    await using database = await createMigratedDatabase('sqlite');
    await (await openOn(database)).close();
    damage(sqlitePath(database));
    await expectOneLine(database.url, cause);
  });
});

describe('a damaged schema on Postgres is reported in one line when it is opened', () => {
  it.each([
    ['a missing table', 'drop table runs cascade', /is damaged: it has no table runs/],
    ['no list of migrations', 'drop table kysely_migration', /is damaged: the list of its migrations is missing/],
    ['a missing column', 'alter table kysely_migration drop column name', /is damaged: .*does not exist/],
  ])('%s', async (_, statement, cause) => {
    await using database = await createMigratedDatabase('postgres');
    await (await openOn(database)).close();
    const sql = await outsideSql(database);
    await sql.rows(statement);
    await sql.close();
    await expectOneLine(database.url, cause);
  });
});
