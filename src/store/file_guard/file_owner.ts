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

/** `pragma application_id` of every Anabranch file: "anab" as a big-endian number. Must never change. */
export const APPLICATION_ID = 0x616e6162;
/** The rewrite of a file without tables applies the mode of `auto_vacuum`, if the file has a page already. */
const MARK = `pragma auto_vacuum = incremental; vacuum; pragma application_id = ${APPLICATION_ID}`;

/**
 * First bytes of every SQLite database, and the offset of its application_id: https://www.sqlite.org/fileformat.html.
 */
const MAGIC = Buffer.from('SQLite format 3\0', 'latin1');
const APPLICATION_ID_AT = 68;
const HEADER_BYTES = 100;

/**
 * Rejects a file of another program. Reads the file without locks and without creating SQLite's auxiliary files, so
 * that a rejected file and its folder are not changed. Accepts a missing or empty file, one without tables, and a file
 * of Anabranch. `name` is the file as the operator named it. Errors: StoreOpenError.
 */
export function refuseForeignFile(path: string, name: string): void {
  if (!existsSync(path)) return;
  const header = readHeader(path);
  if (header.length === 0) return;
  if (!header.subarray(0, MAGIC.length).equals(MAGIC)) throw notOurs(name, 'it is not a SQLite database');
  // Anabranch writes the id before the first WAL, so a header with the id makes reading the WAL unnecessary.
  if (header.length === HEADER_BYTES && header.readUInt32BE(APPLICATION_ID_AT) === APPLICATION_ID) return;
  const foreign = foreignContents(readContents(path));
  if (foreign !== undefined) throw notOurs(name, foreign);
}

/**
 * Marks a file without tables as an Anabranch file. Must run before the first switch to WAL, so that the id is in the
 * file itself. The file can be shortened in small steps later.
 */
export function markAsOurs(database: DatabaseSync): void {
  if (applicationIdOf(database) !== APPLICATION_ID) database.exec(MARK);
}

interface Contents {
  readonly applicationId: number;
  readonly tables: readonly string[];
}

/** Describes the content of another program; undefined if there is none. */
function foreignContents({ applicationId, tables }: Contents): string | undefined {
  if (applicationId !== 0 && applicationId !== APPLICATION_ID) {
    return `it has another program's application_id, ${applicationId}`;
  }
  const [first] = tables;
  if (first === undefined) return undefined;
  const others = tables.length === 1 ? '' : ` and ${tables.length - 1} more`;
  return `it holds tables of another program (${JSON.stringify(first)}${others})`;
}

/**
 * `immutable` prevents locks and a `-shm` file, but also ignores the WAL. The WAL can hold everything if a program has
 * the file open or did not close it. If the file alone has no table, a copy of both is read.
 */
function readContents(path: string): Contents {
  const immutable = pathToFileURL(path);
  immutable.search = '?immutable=1';
  const contents = read(immutable);
  const wal = `${path}-wal`;
  if (contents.tables.length > 0 || !existsSync(wal) || statSync(wal).size === 0) return contents;
  return readCopy(path, wal);
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
    const tables = database.prepare(
      `select name from sqlite_schema where type in ('table', 'view') and name not like 'sqlite\\_%' escape '\\' order by name`,
    );
    return { applicationId: applicationIdOf(database), tables: tables.all().map(({ name }) => String(name)) };
  } finally {
    database.close();
  }
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

function notOurs(name: string, why: string): StoreOpenError {
  return new StoreOpenError(
    `${name} cannot be used as a database of Anabranch: ${why}. The file was not changed. To use another file, set --database sqlite:PATH or DATABASE_URL.`,
    { cause: new Error(why) },
  );
}
