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

/**
 * Free space that the migration needs, in sizes of the old file: the new one, with both forms of steps, and its log.
 */
const ROOM = 3;

/** Damage of what the migration writes. Other rows are compared with those of the old file. */
const WRITTEN: ReadonlySet<string> = new Set(['STEPS', 'COLUMNS']);

/**
 * Migrates a file of a version before segments into a new file beside it, which then takes its place. An interrupted
 * migration continues. The old file is not changed, apart from a mark that older versions refuse. If the disk becomes
 * full, the new file and the mark are removed. `migrate` migrates the file with this path, and returns what is wrong
 * with it. Damage that the old file has already is passed to `onDamage`, because a refusal would make all of the data
 * unreadable. Errors: StoreOpenError.
 */
export async function migrateIntoNewFile(
  named: string,
  migrate: (path: string) => Promise<readonly StorageFault[]>,
  onDamage: (fault: StorageFault) => void,
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
    const faults = await migrate(copy);
    const written = faults.filter(({ check }) => WRITTEN.has(check)).map(({ message }) => message);
    const differing = [...differences(path, copy), ...written];
    if (differing.length > 0) {
      const found = differing.slice(0, 10).join('; ');
      throw new StoreOpenError(`${named} was migrated into ${copy}, which differs: ${found}. ${named} is unchanged.`);
    }
    for (const fault of faults) onDamage(fault);
    replace(path, copy);
  } catch (error) {
    if (!isFull(error)) throw error;
    discard(path);
    throw new StoreOpenError(
      `${named} is migrated into a new file beside it, and the disk became full. The new file was removed, and ${named} is unchanged: make room, and start again.`,
      { cause: error },
    );
  } finally {
    lock.release();
  }
}

/** SQLite's result code of a full disk. */
const FULL = 13;

/** Returns whether the disk is full, by an error or what caused it. */
function isFull(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, errcode } = error as { code?: unknown; errcode?: unknown };
  return code === 'ENOSPC' || (Number(errcode ?? 0) & 0xff) === FULL || isFull(error.cause);
}

/** Removes what an unfinished migration has written. */
function discard(path: string): void {
  for (const copy of [`${path}.migrating`, `${path}.copying`]) {
    for (const suffix of ['', '-wal', '-shm', '-journal', '.lock', '.holder'])
      rmSync(`${copy}${suffix}`, { force: true });
  }
  const database = new DatabaseSync(path, { timeout: 5000 });
  try {
    database.exec(`delete from kysely_migration where name = '${MIGRATION}'`);
    database.exec('pragma wal_checkpoint(truncate)');
  } finally {
    database.close();
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
  const needed = Math.ceil((statSync(path).size + logBytes(path)) * ROOM) - has;
  const { bavail, bsize } = statfsSync(dirname(path));
  if (bavail * bsize >= needed) return;
  throw new StoreOpenError(
    `${named} is migrated into a new file beside it, which needs ${needed} free bytes, and ${bavail * bsize} are free: make room, and start again. Nothing was changed.`,
  );
}

/** Bytes of rows that are not in the file yet. */
function logBytes(path: string): number {
  return statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0;
}

/** The copy is complete when it has its name. */
function copyFormer(path: string, copy: string): void {
  const unfinished = `${path}.copying`;
  rmSync(unfinished, { force: true });
  const database = new DatabaseSync(path, { timeout: 5000 });
  try {
    // An older version that is started again must not write to a file of which there is a copy already.
    database.exec(`insert or ignore into kysely_migration (name, timestamp) values ('${MIGRATION}', datetime())`);
    database.exec('pragma wal_checkpoint(truncate); pragma auto_vacuum = incremental');
    database.prepare('vacuum into ?').run(unfinished);
  } finally {
    database.close();
  }
  const copied = new DatabaseSync(unfinished, { timeout: 5000 });
  copied.exec(`delete from kysely_migration where name = '${MIGRATION}'`);
  copied.close();
  renameSync(unfinished, copy);
}

/** Tables whose rows no migration adds or removes. */
const KEPT = [
  ...['steps', 'trajectories', 'tags', 'state_chunks', 'state_uploads'],
  ...['experiments', 'runs', 'stages', 'metric_points', 'status_changes'],
];

/** Rows of the old file that the new one must have. Small states that steps name are stored with the steps. */
const STORED = {
  state: `select hex(f.digest) as name from former.states as f
    where not (f.size < 4096 and f.referenced) and not exists (select 1 from main.states as s
      where s.namespace = f.namespace and s.digest = f.digest and s.size = f.size and s.encoding = f.encoding
        and s.upload is f.upload and s.data is f.data)`,
  'chunk of a state': `select f.upload || ' ' || f.ordinal as name from former.state_chunks as f
    where not exists (select 1 from main.state_chunks as s
      where s.upload = f.upload and s.ordinal = f.ordinal and s.data = f.data)`,
  'reference to a state': `select r.trajectory || ' ' || r.step_number as name
    from (select tree, trajectory, step_number, name, namespace, digest from former.step_states where size >= 4096
      union all select tree, trajectory, step_number, '', namespace, digest from former.content_states) as r
    inner join former.states as f on f.namespace = r.namespace and f.digest = r.digest
    where not exists (select 1 from main.states as s inner join main.state_refs as m on m.state = s.key
      where s.namespace = r.namespace and s.digest = r.digest and m.tree = r.tree and m.trajectory = r.trajectory
        and m.step_number = r.step_number and m.name = r.name)`,
};

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
    for (const [what, missing] of Object.entries(STORED)) {
      const row = database.prepare(`${missing} limit 1`).get();
      if (row !== undefined) found.push(`the ${what} ${row.name} is not the same`);
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
  const database = new DatabaseSync(copy, { timeout: 5000 });
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
