import {
  closeSync,
  existsSync,
  fsyncSync,
  openSync,
  realpathSync,
  renameSync,
  rmSync,
  statfsSync,
  statSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import type { StorageFault } from '../../domain/verification.ts';
import { StoreOpenError } from '../contract/store.ts';
import { isFileError } from '../sqlite/errors.ts';
import { refuseForeignFile } from '../sqlite/file_owner.ts';
import { lockFile } from '../sqlite/lock.ts';

/** The migration that is done in a new file. */
const MIGRATION = '0018_segments';

/** Free space that the migration needs, in sizes of the old file: the new one, with both forms of steps, and its log. */
const ROOM = 2.5;

/** Damage of what the migration writes. Other damage was there before. */
const WRITTEN: ReadonlySet<string> = new Set(['STEPS', 'COLUMNS']);

/**
 * Migrates a file of a version before segments into a new file beside it, which then takes its place. An interrupted
 * migration continues. The old file is not changed, apart from a mark that older versions refuse. `migrate` migrates the
 * file with this path, and returns what is wrong with it. Errors: StoreOpenError.
 */
export async function migrateIntoNewFile(
  named: string,
  migrate: (path: string) => Promise<readonly StorageFault[]>,
): Promise<void> {
  if (!existsSync(named)) return;
  const path = realpathSync(named);
  refuseForeignFile(path, named);
  if (!isFormer(path)) return;
  const lock = lockFile(path);
  try {
    const copy = `${path}.migrating`;
    refuseWithoutRoom(named, path, copy);
    if (!existsSync(copy)) copyFormer(path, copy);
    const faults = (await migrate(copy)).filter(({ check }) => WRITTEN.has(check));
    const differing = differences(path, copy);
    if (faults.length > 0 || differing.length > 0) {
      const found = [...differing, ...faults.map(({ message }) => message)].slice(0, 10).join('; ');
      throw new StoreOpenError(`${named} was migrated into ${copy}, which differs: ${found}. ${named} is unchanged.`);
    }
    replace(path, copy);
  } finally {
    lock.release();
  }
}

/** Whether a version before segments made the tables. A damaged file is reported when it is opened. */
function isFormer(path: string): boolean {
  try {
    return reading(path, (database) => {
      const has = database.prepare(`select 1 from sqlite_master where type = 'table' and name = ?`);
      if (has.get('kysely_migration') === undefined || has.get('steps') === undefined) return false;
      return has.get('segments') === undefined;
    });
  } catch (error) {
    if (isFileError(error)) return false;
    throw error;
  }
}

function refuseWithoutRoom(named: string, path: string, copy: string): void {
  const has = existsSync(copy) ? statSync(copy).size : 0;
  const needed = Math.ceil(statSync(path).size * ROOM) - has;
  const { bavail, bsize } = statfsSync(dirname(path));
  if (bavail * bsize >= needed) return;
  throw new StoreOpenError(
    `${named} is migrated into a new file beside it, which needs ${needed} free bytes, and ${bavail * bsize} are free: make room, and start again. Nothing was changed.`,
  );
}

/** The copy is complete when it has its name. */
function copyFormer(path: string, copy: string): void {
  const unfinished = `${path}.copying`;
  rmSync(unfinished, { force: true });
  const database = new DatabaseSync(path);
  try {
    // An older version that is started again must not write to a file of which there is a copy already.
    database.exec(`insert or ignore into kysely_migration (name, timestamp) values ('${MIGRATION}', datetime())`);
    database.exec('pragma wal_checkpoint(truncate); pragma auto_vacuum = incremental');
    database.prepare('vacuum into ?').run(unfinished);
  } finally {
    database.close();
  }
  const copied = new DatabaseSync(unfinished);
  copied.exec(`delete from kysely_migration where name = '${MIGRATION}'`);
  copied.close();
  renameSync(unfinished, copy);
}

/** Tables whose rows no migration adds or removes. */
const KEPT = ['steps', 'trajectories', 'tags', 'experiments', 'runs', 'stages', 'metric_points', 'status_changes'];

/** Trajectories whose steps are compared together. */
const WINDOW = 1000n;

/** What SQL says about each step, apart from its contents, which `migrate` verifies. */
const COMPARED = 'tree, trajectory, step_number, namespace, reward, terminated, truncated, commit_time';

/** Compares the rows of both files. */
function differences(path: string, copy: string): string[] {
  return reading(copy, (database) => {
    database.prepare('attach ? as former').run(path);
    const found: string[] = [];
    for (const table of KEPT) {
      const rows = database.prepare(
        `select (select count(*) from former.${table}) as former, (select count(*) from main.${table}) as now`,
      );
      const { former, now } = rows.get()!;
      if (former !== now) found.push(`${table} has ${now} rows instead of ${former}`);
    }
    const within = 'where trajectory > ? and trajectory <= ?';
    const missing = database.prepare(`select * from (select ${COMPARED} from former.steps ${within}
      except select ${COMPARED} from main.steps ${within}) limit 1`);
    const last = BigInt(Number(database.prepare('select max(key) as last from former.trajectories').get()?.last ?? 0));
    for (let after = 0n; after < last; after += WINDOW) {
      const range = [after, after + WINDOW];
      const step = missing.get(...range, ...range);
      if (step !== undefined)
        found.push(`step ${step.step_number} of the trajectory with key ${step.trajectory} is not the same`);
    }
    return found;
  });
}

function replace(path: string, copy: string): void {
  const database = new DatabaseSync(copy);
  // The space of the old form of steps.
  database.exec('pragma incremental_vacuum; pragma wal_checkpoint(truncate)');
  database.close();
  synchronize(copy);
  // What is in its log is in the old file, of which nothing is left then.
  for (const suffix of ['-wal', '-shm']) rmSync(`${path}${suffix}`, { force: true });
  renameSync(copy, path);
  synchronize(dirname(path));
  for (const suffix of ['.lock', '.holder']) rmSync(`${copy}${suffix}`, { force: true });
}

function synchronize(path: string): void {
  const file = openSync(path, 'r');
  try {
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

function reading<T>(path: string, read: (database: DatabaseSync) => T): T {
  const database = new DatabaseSync(path, { readOnly: true, timeout: 5000 });
  try {
    return read(database);
  } finally {
    database.close();
  }
}
