import { fdatasync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { Kysely, SqliteAdapter, SqliteDialect, sql } from 'kysely';
import { refuseForeignFile } from '../file_guard/file_owner.ts';
import { type FileLock, lockFile } from '../file_guard/lock.ts';
import { cannotOpen, resolvePath } from '../file_guard/path.ts';
import { FileWatch } from '../file_guard/watch.ts';
import { canServe, type MigrateOptions, migrate } from '../migrations/migrate.ts';
import type { StoreEngine } from '../sql/engine.ts';
import { ChangeListeners } from '../sql/kit/changes.ts';
import { SegmentCompressor } from '../sql/kit/compression.ts';
import { KeptQueries } from '../sql/kit/kept_queries.ts';
import { ReadingDbs } from '../sql/kit/reading/dbs.ts';
import { ReadSlots } from '../sql/kit/reading/slots.ts';
import { StatementTimes } from '../sql/kit/statement_times.ts';
import type { Tables } from '../sql/kit/tables.ts';
import { KnownHeads } from '../sql/log/append/known_heads.ts';
import { SqliteBulkRows } from './bulk_rows.ts';
import { SqliteChanges } from './changes.ts';
import { SqliteClaims } from './claims.ts';
import { Connection, openWriter } from './connection.ts';
import { SqliteEngine } from './engine.ts';
import { isFileError, translateError } from './errors.ts';
import { sqliteAggregates, sqliteExpressions } from './expressions.ts';
import { KeyReads } from './key_reads.ts';
import { SqliteKeys } from './keys.ts';
import { SqliteLocks } from './locks.ts';
import { PointWriter } from './points.ts';
import { COPY_LOG, ReadThreadHandle, ReadThreads } from './read_threads.ts';
import { SqliteStateRows } from './state_rows.ts';
import { Wal } from './wal.ts';
import { WriteLock } from './write_lock.ts';
import { Writes } from './writes.ts';

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
): Promise<StoreEngine> {
  const path = resolvePath(named);
  let lock: FileLock | undefined;
  let writer: Connection | undefined;
  try {
    refuseForeignFile(path, named);
    lock = lockFile(path);
    const times = new StatementTimes();
    writer = new Connection(openWriter(path), times);
    const dialect = new Dialect({ database: writer });
    const writing = new Kysely<Tables>({ dialect });
    await migrate(writing, 'sqlite', migrating);
    // Not before, because migrations sort whole tables, and a sort in memory has no bound.
    await sql`pragma temp_store = memory`.execute(writing);
    // From here on the thread serves calls, and must not block on a lock (see `WriteLock`).
    await sql`pragma busy_timeout = 0`.execute(writing);
    // Nor must it copy the log (see `Wal`).
    await sql`pragma wal_autocheckpoint = 0`.execute(writing);
    const readThreads = Math.max(1, Math.min(MOST_READ_THREADS, availableParallelism() - 1));
    const threads = new ReadThreads(path, readThreads, { times });
    const slots = new ReadSlots();
    const watch = new FileWatch({ named, path, descriptor: lock.descriptor });
    const copier = new ReadThreadHandle(path, { copiesLog: true });
    const writeLock = new WriteLock();
    const { descriptor } = lock;
    const wal = new Wal({
      size: () => watch.log,
      copy: async () => {
        await copier.run(COPY_LOG).catch((error: unknown) => {
          throw translateError(error);
        });
        // SQLite syncs the file only when all of the log is copied, for which commits would wait.
        await syncData(descriptor);
      },
      pauseReaders: () => threads.pause(),
      pauseWriters: (work) => writeLock.run(work),
      onFault,
    });
    const keyReads = new KeyReads(path, times);
    const known = new KnownHeads();
    const writes = new Writes({ writer, writing, lock: writeLock, watch, wal, slots, known });
    const kept = new KeptQueries();
    const keys = new SqliteKeys(writer);
    const bulk = new SqliteBulkRows(writer);
    const changes = new SqliteChanges(new ChangeListeners(onFault));
    let closed: Promise<void> | undefined;
    const close = async () => {
      watch.close();
      await threads.close();
      await wal.close();
      await copier.stop(new Error('the store is closed'));
      keyReads.close();
      await writing.destroy();
      watch.release();
      lock?.release();
    };
    const shared = {
      description: `sqlite ${named}`,
      lost: watch.lost,
      sql: sqliteExpressions,
      aggregates: sqliteAggregates,
      locks: new SqliteLocks(writer),
      keys,
      bulk,
      changes,
      stateRows: new SqliteStateRows(writer),
      claims: new SqliteClaims({ writer, writing, keys, changes, kept }),
      kept,
      known,
      compressor: new SegmentCompressor(),
      slots,
      canServe,
      load: () => ({
        pools: { reads: threads.load, writes: writeLock.load },
        listening: undefined,
        walBytes: watch.log.bytes,
        statements: times.all,
      }),
      emptyWal: () => wal.empty(),
      cutFreePages: cutterOf(writer, writes),
      close: () => {
        closed ??= close();
        return closed;
      },
    };
    const pointWriter = new PointWriter(writer, writes);
    return new SqliteEngine({
      path,
      shared,
      threads,
      keyReads,
      dbs: new ReadingDbs(dialect),
      watch,
      slots,
      writer,
      writes,
      bulk,
      pointWriter,
    });
  } catch (error) {
    writer?.close();
    lock?.release();
    throw isFileError(error) ? cannotOpen(named, error) : error;
  }
}

function syncData(descriptor: number): Promise<void> {
  return new Promise((resolve, reject) => {
    fdatasync(descriptor, (error) => (error === null ? resolve() : reject(error)));
  });
}

function cutterOf(writer: Connection, writes: Writes): (pages: number) => Promise<void> {
  return (pages) =>
    writes.run(async () => {
      writer.prepare(`pragma incremental_vacuum(${pages})`).all([]); // each row is a page that was cut
    });
}

/** SQLite supports schema changes in transactions, so a migration is all or nothing (D3). */
class Adapter extends SqliteAdapter {
  override get supportsTransactionalDdl(): boolean {
    return true;
  }
}

class Dialect extends SqliteDialect {
  override createAdapter(): Adapter {
    return new Adapter();
  }
}
