import {
  closeSync,
  constants,
  copyFileSync,
  existsSync,
  mkdtempSync,
  openSync,
  readSync,
  rmSync,
  statSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { pathToFileURL } from 'node:url';
import { StoreOpenError } from '../contract/store.ts';

/** `pragma application_id` of every file of Anabranch: "anab" as a big-endian number. Never change it: older files carry it. */
export const APPLICATION_ID = 0x616e6162;

/** A file without the id is ours if this migration ran in it: files were made without an id before there was one. */
const FIRST_MIGRATION = '0001_trajectories';
const MIGRATION_TABLES: ReadonlySet<string> = new Set(['kysely_migration', 'kysely_migration_lock']);

/** The first bytes of every SQLite database, and where its application_id is; see https://www.sqlite.org/fileformat.html. */
const MAGIC = Buffer.from('SQLite format 3\0', 'latin1');
const APPLICATION_ID_AT = 68;
const HEADER_BYTES = 100;

/**
 * Refuses a file that another program made. The file is only read, without a lock and without SQLite's own files beside it, so a refused file and its folder
 * stay as they are. Accepts a file that does not exist, is empty, holds no table, or is ours. `name` is the file as people call it. Errors: StoreOpenError.
 */
export function refuseForeignFile(path: string, name: string): void {
  if (!existsSync(path)) return;
  const header = readHeader(path);
  if (header.length === 0) return;
  if (!header.subarray(0, MAGIC.length).equals(MAGIC)) throw notOurs(name, 'it is not a SQLite database');
  // Our files have the id before their first WAL, so a header with the id needs no look at the WAL.
  if (header.length === HEADER_BYTES && header.readUInt32BE(APPLICATION_ID_AT) === APPLICATION_ID) return;
  const foreign = foreignContents(readContents(path));
  if (foreign !== undefined) throw notOurs(name, foreign);
}

/** Marks a file as ours. Called before its first switch to WAL, so that the id is in the file itself and not only in the WAL. */
export function markAsOurs(database: DatabaseSync): void {
  if (applicationIdOf(database) !== APPLICATION_ID) database.exec(`pragma application_id = ${APPLICATION_ID}`);
}

interface Contents {
  readonly applicationId: number;
  readonly tables: readonly string[];
  /** Names of the migrations that ran, if there is a migration table. */
  readonly migrations: readonly string[];
}

/** What another program left in the file, in words; undefined if there is nothing, or if the file is ours. */
function foreignContents({ applicationId, tables, migrations }: Contents): string | undefined {
  if (applicationId !== 0 && applicationId !== APPLICATION_ID) {
    return `it has another program's application_id, ${applicationId}`;
  }
  if (migrations.includes(FIRST_MIGRATION)) return undefined;
  const foreign = tables.filter((table) => migrations.length > 0 || !MIGRATION_TABLES.has(table));
  const [first] = foreign;
  if (first === undefined) return undefined;
  const others = foreign.length === 1 ? '' : ` and ${foreign.length - 1} more`;
  return `it holds tables of another program (${JSON.stringify(first)}${others})`;
}

/**
 * `immutable` makes SQLite take no lock and create no `-shm`, but also ignore the WAL. A WAL can hold all there is: of a file that its program never closed, or
 * that it has open. Where the file alone proves nothing, a copy of both is read instead.
 */
function readContents(path: string): Contents {
  const immutable = pathToFileURL(path);
  immutable.search = '?immutable=1';
  const contents = read(immutable);
  if (contents.migrations.includes(FIRST_MIGRATION)) return contents;
  const wal = `${path}-wal`;
  if (!existsSync(wal) || statSync(wal).size === 0) return contents;
  // Tables of others can be in the file and ours in the WAL alone. A copy may be large, so it is made only if the WAL names our first migration.
  const walDecides = contents.tables.length === 0 || contains(wal, Buffer.from(FIRST_MIGRATION));
  return walDecides ? readCopy(path, wal) : contents;
}

function readCopy(path: string, wal: string): Contents {
  const folder = mkdtempSync(join(tmpdir(), 'anabranch-'));
  try {
    const copy = join(folder, 'copy.db');
    copyFileSync(path, copy, constants.COPYFILE_FICLONE);
    copyFileSync(wal, `${copy}-wal`, constants.COPYFILE_FICLONE);
    return read(copy);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function read(file: string | URL): Contents {
  const database = new DatabaseSync(file, { readOnly: true });
  try {
    const tables = namesIn(
      database,
      `select name from sqlite_schema where type in ('table', 'view') and name not like 'sqlite\\_%' escape '\\' order by name`,
    );
    const migrations = tables.includes('kysely_migration')
      ? namesIn(database, 'select name from kysely_migration order by name')
      : [];
    return { applicationId: applicationIdOf(database), tables, migrations };
  } finally {
    database.close();
  }
}

function namesIn(database: DatabaseSync, query: string): string[] {
  return database
    .prepare(query)
    .all()
    .map(({ name }) => String(name));
}

function applicationIdOf(database: DatabaseSync): number {
  return Number(database.prepare('pragma application_id').get()?.application_id ?? 0);
}

function readHeader(path: string): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  const file = openSync(path, 'r');
  try {
    return header.subarray(0, readSync(file, header));
  } finally {
    closeSync(file);
  }
}

/** Whether the bytes stand anywhere in a file, read piece by piece. */
function contains(path: string, bytes: Buffer): boolean {
  const piece = Buffer.alloc(1024 * 1024);
  const file = openSync(path, 'r');
  try {
    let kept = 0;
    for (;;) {
      const length = kept + readSync(file, piece, kept, piece.length - kept, null);
      if (length === kept) return false;
      if (piece.subarray(0, length).includes(bytes)) return true;
      // The bytes may begin in this piece and end in the next.
      kept = Math.min(length, bytes.length - 1);
      piece.copyWithin(0, length - kept, length);
    }
  } finally {
    closeSync(file);
  }
}

function notOurs(name: string, why: string): StoreOpenError {
  return new StoreOpenError(
    `${name} cannot be used as a database of Anabranch: ${why}. The file was not changed. To use another file, set --database sqlite:PATH or DATABASE_URL.`,
  );
}
