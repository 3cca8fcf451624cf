import { createHash } from 'node:crypto';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { makeFleFile } from '../support/fle_file.ts';
import { logger, refusedOpen } from './on_store.ts';
import { Scene } from './scene.ts';

const ANABRANCH = 0x616e6162;

describe('ownership of a SQLite file', () => {
  let root: string;
  beforeAll(() => {
    root = mkdtempSync(path.join(tmpdir(), 'anabranch-owner-'));
  });
  afterAll(() => rmSync(root, { recursive: true, force: true }));

  /** Returns a path for a file in a folder of its own. */
  function newFile(): string {
    return path.join(mkdtempSync(path.join(root, 'case-')), 'data.db');
  }

  function make(file: string, statements: string): void {
    const database = new DatabaseSync(file);
    database.exec(statements);
    database.close();
  }

  /**
   * The files that a program leaves if it is killed after these statements: in WAL mode, with everything it wrote in
   * the WAL.
   */
  function makeKilled(file: string, statements: string): void {
    const origin = path.join(path.dirname(file), 'origin');
    mkdirSync(origin);
    const running = new DatabaseSync(path.join(origin, 'data.db'));
    running.exec(`pragma wal_autocheckpoint = 0; ${statements}`);
    for (const end of ['', '-wal']) copyFileSync(path.join(origin, `data.db${end}`), `${file}${end}`);
    running.close();
    rmSync(origin, { recursive: true });
    expect(statSync(`${file}-wal`).size).toBeGreaterThan(0);
  }

  /** Every file of the folder, byte for byte, with its modification time. */
  function contentsOf(file: string): string[] {
    const folder = path.dirname(file);
    const timeOf = (each: string) => statSync(each, { bigint: true }).mtimeNs;
    const files = readdirSync(folder).map((name) => {
      const full = path.join(folder, name);
      return `${name} ${createHash('sha256').update(readFileSync(full)).digest('hex')} ${timeOf(full)}`;
    });
    return [...files, `folder ${timeOf(folder)}`];
  }

  function applicationIdOf(file: string): number {
    return readFileSync(file).readUInt32BE(68);
  }

  const open = (file: string) => openStore({ engine: 'sqlite', path: file }, { logger });

  /** Opens, uses and closes a store on the file. */
  async function use(file: string): Promise<void> {
    const store = await open(file);
    const scene = new Scene(store);
    const made = await scene.createWith(['a', 'b']);
    expect(await scene.words(made)).toEqual(['a', 'b']);
    await store.close();
  }

  const foreign: readonly (readonly [string, (file: string) => void, string])[] = [
    ['with tables of FLE', makeFleFile, 'it holds tables of another program ("programs")'],
    [
      'with several tables, in WAL mode',
      (file) =>
        make(file, 'pragma journal_mode = wal; create table b (x); create table a (x); create view c as select 1'),
      'it holds tables of another program ("a" and 2 more)',
    ],
    [
      'whose tables stand in the WAL alone',
      (file) => makeKilled(file, 'pragma journal_mode = wal; create table a (x)'),
      'it holds tables of another program ("a")',
    ],
    [
      'with a WAL, and tables in both',
      (file) => makeKilled(file, 'create table a (x); pragma journal_mode = wal; create table b (x)'),
      'it holds tables of another program ("a")',
    ],
    [
      'with the application_id of another program, and no table',
      (file) => make(file, 'pragma application_id = 252006674'),
      "it has another program's application_id, 252006674",
    ],
    [
      'with such an application_id in the WAL alone',
      (file) => makeKilled(file, 'pragma journal_mode = wal; pragma application_id = 252006674'),
      "it has another program's application_id, 252006674",
    ],
    [
      'with a migration table of another program',
      (file) =>
        make(
          file,
          "create table kysely_migration (name text, timestamp text); insert into kysely_migration values ('0001_init', '')",
        ),
      'it holds tables of another program ("kysely_migration")',
    ],
  ];

  it.each(foreign)(
    'D6: a file %s is refused with one line, and left byte for byte as it was',
    async (_of, makeFile, why) => {
      const file = newFile();
      makeFile(file);
      const before = contentsOf(file);
      const { message } = await refusedOpen(open(file));
      expect(message).toBe(
        `${file} cannot be used as a database of Anabranch: ${why}. The file was not changed. To use another file, set --database sqlite:PATH or DATABASE_URL.`,
      );
      expect(contentsOf(file)).toEqual(before);
    },
  );

  it('D6: a file that another program has open is refused, and that program is not disturbed', async () => {
    const file = newFile();
    const program = new DatabaseSync(file);
    program.exec('pragma journal_mode = wal; create table a (x); begin immediate; insert into a values (1)');
    const before = contentsOf(file);
    await refusedOpen(open(file));
    expect(contentsOf(file)).toEqual(before);
    program.exec('commit; insert into a values (2)');
    expect(program.prepare('select count(*) as n from a').get()).toMatchObject({ n: 2 });
    program.close();
  });

  it('D6: a new file has the application id in the main file, not only in its WAL, from the start', async () => {
    const file = newFile();
    const store = await open(file);
    expect(applicationIdOf(file)).toBe(ANABRANCH);
    await store.close();
    expect(applicationIdOf(file)).toBe(ANABRANCH);
    await use(file);
  });

  it.each([
    ['of no bytes', ''],
    ['without tables', 'pragma user_version = 3'],
    ['whose tables were dropped', 'create table a (x integer primary key autoincrement); drop table a'],
  ])('D6, V3: a file %s is accepted, and can be shortened while it is served', async (_what, statements) => {
    const file = newFile();
    make(file, statements);
    expect(existsSync(file)).toBe(true);
    await use(file);
    expect(applicationIdOf(file)).toBe(ANABRANCH);
    const reader = new DatabaseSync(file, { readOnly: true });
    expect(reader.prepare('pragma auto_vacuum').get()).toEqual({ auto_vacuum: 2 });
    reader.close();
  });
});
