import { existsSync, mkdirSync, realpathSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { Kysely, sql } from 'kysely';
import { StoreOpenError } from '../contract/store.ts';
import { type MigrateOptions, migrate } from '../migrations/migrate.ts';
import { ChangeListeners } from '../sql/changes.ts';
import type { Engine, Tx } from '../sql/engine.ts';
import { KeptQueries } from '../sql/kept_queries.ts';
import { ReadSlots } from '../sql/reading/slots.ts';
import type { Tables } from '../sql/tables.ts';
import { Connection, openWriter } from './connection.ts';
import { Dialect } from './dialect.ts';
import { SqliteEngine } from './engine.ts';
import { isFileError } from './errors.ts';
import { refuseForeignFile } from './file_owner.ts';
import { lockFile } from './lock.ts';
import { PointWriter } from './metric_points.ts';
import { ReadThreads } from './read_threads.ts';
import { RowWriter } from './rows.ts';
import { Wal } from './wal.ts';
import { WriteLock } from './write_lock.ts';

/** Bound on the threads for long reads. Otherwise there is one for each processor except the one of the server. */
const MOST_READ_THREADS = 4;

/**
 * Opens the embedded engine: one file and one process. One connection writes on the thread of the server. Others read
 * on threads of their own.
 */
export async function openSqlite(
  named: string,
  onFault: (error: unknown) => void,
  migrating: MigrateOptions = {},
): Promise<Engine> {
  const path = resolvePath(named);
  let lock: { release(): void } | undefined;
  let writer: Connection | undefined;
  try {
    refuseForeignFile(path, named);
    lock = lockFile(path);
    writer = new Connection(openWriter(path));
    const dialect = new Dialect({ database: writer });
    const writing = new Kysely<Tables>({ dialect });
    await migrate(writing, 'sqlite', migrating);
    // Not before, because migrations sort whole tables, and a sort in memory has no bound.
    await sql`pragma temp_store = memory`.execute(writing);
    // From here on the thread serves calls, and must not block on a lock (see `WriteLock`).
    await sql`pragma busy_timeout = 0`.execute(writing);
    const writeLock = new WriteLock();
    const threads = new ReadThreads(path, Math.max(1, Math.min(MOST_READ_THREADS, availableParallelism() - 1)));
    const slots = new ReadSlots();
    const wal = new Wal({
      ...{ path, onFault },
      pauseReaders: () => threads.pause(),
      checkpoint: async () => {
        await sql`pragma wal_checkpoint(passive)`.execute(writing);
      },
    });
    const transact = async <T>(work: (tx: Tx) => Promise<T>, writer?: object): Promise<T> => {
      slots.wrote(writer);
      const result = await writeLock.run(() => writing.transaction().execute(work));
      wal.committed();
      return result;
    };
    return new SqliteEngine({
      ...{ description: `sqlite ${named}`, threads, slots, dialect, writing, writer, transact, writeLock, lock },
      ...{ listeners: new ChangeListeners(onFault), kept: new KeptQueries(), rows: new RowWriter(writer) },
      ...{ points: new PointWriter(writer, transact), givenKeys: new Map(), closed: undefined },
    });
  } catch (error) {
    writer?.close();
    lock?.release();
    throw isFileError(error) ? cannotOpen(named, error) : error;
  }
}

/** Creates the folder and resolves links, so that one file has one lock. */
function resolvePath(path: string): string {
  try {
    makeFolders(resolve(dirname(path)));
    return existsSync(path) ? realpathSync(path) : join(realpathSync(dirname(path)), basename(path));
  } catch (error) {
    throw cannotOpen(path, error as Error);
  }
}

function cannotOpen(path: string, cause: Error): StoreOpenError {
  const message = `${path} cannot be opened as a database: ${cause.message}. Name another file (--database sqlite:PATH).`;
  return new StoreOpenError(message, { cause });
}

/**
 * Creates one level at a time: Node's recursive mkdir never ends in folders that cannot have children, such as /proc.
 */
function makeFolders(folder: string): void {
  if (existsSync(folder)) return;
  makeFolders(dirname(folder));
  mkdirSync(folder);
}
