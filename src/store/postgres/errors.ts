import { AnabranchError } from '../../domain/errors.ts';
import { Contended, DatabaseSilent } from '../contract/store.ts';
import { NoWritableHost } from '../postgres_access/connecting.ts';
import { UniqueViolation } from '../sql/kit/unique_violation.ts';
import { Silence } from './silence.ts';

/** Translates errors of `pg`; unknown ones are returned unchanged. SQLSTATEs: appendix A of the Postgres manual. */
export function translateError(error: unknown): unknown {
  if (error instanceof AnabranchError || !(error instanceof Error)) return error;
  const code = (error as { code?: unknown }).code;
  if (code === '23505') return new UniqueViolation('a row with this key exists', { cause: error });
  if (code === '53100') {
    return new AnabranchError(
      'STORAGE_FULL',
      'The disk of the database is full. Nothing was written; reads continue. Free some space, then retry the call.',
      { cause: error },
    );
  }
  if (isReadOnlyTransaction(error)) {
    // Without the cause, which the log of each failed call would have: the change of the database is logged instead.
    return new AnabranchError(
      'DATABASE_READ_ONLY',
      'The database is read-only: default_transaction_read_only is on, or the server is a standby. Nothing was stored; reads continue. Make it writable, or connect the server to the primary; then retry the call.',
    );
  }
  if (error instanceof NoWritableHost) {
    return new AnabranchError(
      'DATABASE_UNAVAILABLE',
      'No host in the URL of the database accepts writes. Nothing was stored. Retry the call.',
      { cause: error },
    );
  }
  const held = CONTENTION[String(code)];
  if (held !== undefined) {
    return new Contended(
      'DATABASE_UNAVAILABLE',
      `${held.replace('{row}', rowOf(error))} Nothing was stored. Retry the call.`,
      { cause: error },
    );
  }
  const silent = error instanceof Silence;
  if (silent || isUnavailable(error, code)) {
    const Unavailable = silent && error.whole ? DatabaseSilent : AnabranchError;
    return new Unavailable(
      'DATABASE_UNAVAILABLE',
      'The database does not respond. It is unknown whether unacked writes were stored. Retrying is safe.',
      { cause: error },
    );
  }
  return error;
}

/** Messages for conflicts with other transactions, by SQLSTATE. The database itself answers. */
const CONTENTION: Readonly<Record<string, string>> = {
  // lock_not_available
  '55P03': 'Another transaction has locked {row} that this call needs, and did not release it in time.',
  // query_canceled by statement_timeout
  '57014': 'A statement of the database took too long.',
  // serialization_failure and deadlock_detected, after several attempts
  '40001': 'Other transactions repeatedly changed rows that this call needs.',
  '40P01': 'The call was repeatedly in a deadlock with other transactions.',
};

/** Describes the locked row, if Postgres names the table. */
function rowOf({ where }: { readonly where?: unknown } & Error): string {
  const table = /in relation "(\w+)"/.exec(String(where))?.[1] ?? '';
  return ROWS[table] ?? 'a row';
}

const ROWS: Readonly<Record<string, string>> = {
  trajectories: 'the row of a trajectory',
  states: 'the row of a state',
  runs: 'the row of a run',
  rollouts: 'the row of a rollout',
};

/** Returns whether the work should be retried, because Postgres aborted it in favour of another transaction. */
export function isRetryable(error: unknown): boolean {
  const code = (error as { code?: unknown } | null)?.code;
  return code === '40001' || code === '40P01';
}

/** Tables, columns and functions that are missing or exist although they should not, and files that cannot be read. */
const DAMAGE = new Set(['42P01', '42P07', '42701', '42703', '42704', '42710', '42883', '22021', '58030', '58P01']);

/** Returns whether Postgres could not read what it has stored: damaged pages, missing files, a changed schema. */
export function isDamage(error: unknown): boolean {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' && (DAMAGE.has(code) || code.startsWith('XX'));
}

/** Returns whether Postgres rejected a write or LISTEN: the transaction is read-only, or the server a standby. */
export function isReadOnlyTransaction(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '25006';
}

/**
 * Returns whether the name of a prepared statement was unknown or taken: a pooler used another connection for the
 * transaction.
 */
export function isForgottenStatement(error: unknown): boolean {
  const code = (error as { code?: unknown } | null)?.code;
  return code === '26000' || code === '42P05';
}

/** Returns whether a migration has changed the columns that a prepared statement returns. */
export function isOutdatedStatement(error: unknown): boolean {
  const { code, routine } = (error ?? {}) as { code?: unknown; routine?: unknown };
  return code === '0A000' && routine === 'RevalidateCachedQuery';
}

/** Returns whether Postgres accepts no more connections, of anybody, this role, or to this database. */
export function isFull(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '53300';
}

const UNAVAILABLE_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'ENOENT',
  'ENOTFOUND',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'EAI_AGAIN',
  // A session cannot begin: the password, the role, its rights or the database has changed.
  '28000',
  '28P01',
  '3D000',
  // Too many connections, or a server that is starting, stopping or recovering.
  '53300',
  '57P01',
  '57P02',
  '57P03',
  '25P03',
]);

function isUnavailable(error: Error, code: unknown): boolean {
  if (typeof code === 'string' && (UNAVAILABLE_CODES.has(code) || code.startsWith('08'))) return true;
  // Errors after a disconnect have no code.
  return /Connection terminated|not queryable|Client was closed|Connection ended/i.test(error.message);
}
