import { setTimeout as wait } from 'node:timers/promises';
import { type Kysely, sql } from 'kysely';
import { Contended, StoreOpenError } from '../contract/store.ts';

/**
 * Longest time that a statement of a migration waits for a lock on Postgres. Other statements that need the table wait
 * behind it, so that also an append waits no longer than this.
 */
export const LOCK_TIMEOUT_MS = 2_000;
/** Between two attempts, appends and reads that waited are served. */
const PAUSE_MS = 1_000;
/** For about five minutes. */
const ATTEMPTS = 100;

/** Lock on Postgres: a name, as a number. */
const MIGRATION_LOCK = 0x616e_6162_6d69_67n;

type Log = ((details: object, message: string) => void) | undefined;

/**
 * Runs work while no other process does, on a second connection. It asks for the lock again and again: a statement that
 * waits for a lock is one that `create index concurrently` of the process with the lock waits for.
 */
export async function inTurn<T>(db: Kysely<T>, work: () => Promise<void>, log: Log): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    const isDone = await db.transaction().execute(async (lock) => {
      await sql`set local idle_in_transaction_session_timeout = 0`.execute(lock);
      // Without a parameter: the portal of a prepared statement would keep a snapshot, for which an index waits, too.
      const asked = sql<{
        locked: boolean;
      }>`select pg_try_advisory_xact_lock(${sql.raw(`${MIGRATION_LOCK}`)}) as locked`;
      const { rows } = await asked.execute(lock);
      if (rows[0]?.locked === true) await work();
      return rows[0]?.locked;
    });
    if (isDone === true) return;
    if (attempt === 1) log?.({}, 'another process migrates the schema: waits for its end');
    await wait(PAUSE_MS / 5);
  }
}

/** Runs one transaction again while tables that it changes are locked. Errors: StoreOpenError. */
export async function withLockTimeout<R>(transaction: () => Promise<R>, log: Log): Promise<R> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await transaction();
    } catch (error) {
      if (!isLockTimeout(error)) throw error;
      if (attempt === ATTEMPTS) {
        throw new StoreOpenError(
          'The schema is not migrated: other transactions have kept tables locked that the migration changes, such as that of pg_dump. What was migrated is kept. End them, and start again.',
          { cause: error },
        );
      }
      log?.({ attempt, attempts: ATTEMPTS }, 'a table that the migration changes is locked: tries again');
      await wait(PAUSE_MS);
    }
  }
}

function isLockTimeout(error: unknown): boolean {
  const cause = error instanceof Contended ? error.cause : error;
  return (cause as { code?: unknown } | null | undefined)?.code === '55P03';
}
