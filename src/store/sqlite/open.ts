import { availableParallelism } from 'node:os';
import { Kysely, sql } from 'kysely';
import { refuseForeignFile } from '../file_guard/file_owner.ts';
import { type FileLock, lockFile } from '../file_guard/lock.ts';
import { cannotOpen, resolvePath } from '../file_guard/path.ts';
import { FileWatch } from '../file_guard/watch.ts';
import { type MigrateOptions, migrate } from '../migrations/migrate.ts';
import { ChangeListeners } from '../sql/kit/changes.ts';
import type { Engine, Tx } from '../sql/kit/engine.ts';
import { KeptQueries } from '../sql/kit/kept_queries.ts';
import { ReadSlots } from '../sql/kit/reading/slots.ts';
import type { Tables } from '../sql/kit/tables.ts';
import { RowWriter } from './bulk_rows.ts';
import { Connection, openWriter } from './connection.ts';
import { Dialect } from './dialect.ts';
import { SqliteEngine } from './engine.ts';
import { isFileError } from './errors.ts';
import { PointWriter } from './points.ts';
import { ReadThreads } from './read_threads.ts';
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
  let lock: FileLock | undefined;
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
    const watch = new FileWatch({ named, path, descriptor: lock.descriptor });
    // Every write goes through it: what it returns may be acked.
    const transact = async <T>(work: (tx: Tx) => Promise<T>, writer?: object): Promise<T> => {
      slots.wrote(writer);
      const begin = () => {
        watch.lost.throwIfAborted();
        return writing.transaction().execute(work);
      };
      const result = await writeLock.run(begin).catch(async (error: unknown) => {
        throw await watch.explain(error);
      });
      wal.committed();
      await watch.checked();
      return result;
    };
    return new SqliteEngine({
      ...{ description: `sqlite ${named}`, path, threads, slots, dialect, writing, writer, transact, writeLock, lock },
      ...{ watch, lost: watch.lost },
      ...{ listeners: new ChangeListeners(onFault), kept: new KeptQueries(), rows: new RowWriter(writer) },
      ...{ points: new PointWriter(writer, transact), givenKeys: new Map(), closed: undefined, wal },
    });
  } catch (error) {
    writer?.close();
    lock?.release();
    throw isFileError(error) ? cannotOpen(named, error) : error;
  }
}
