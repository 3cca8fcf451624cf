import { AnabranchError } from '../../domain/errors.ts';
import { UniqueViolation } from '../sql/unique_violation.ts';

/** What an error of `pg` is to the store; unknown ones stay as they are. SQLSTATEs: appendix A of the Postgres manual. */
export function translateError(error: unknown): unknown {
  if (error instanceof AnabranchError || !(error instanceof Error)) return error;
  const code = (error as { code?: unknown }).code;
  if (code === '23505') return new UniqueViolation('a row of that key is there already', { cause: error });
  if (code === '53100') {
    return new AnabranchError(
      'STORAGE_FULL',
      "The database's disk is full: nothing was written, reads go on. Make space, then send it again.",
      { cause: error },
    );
  }
  if (isUnavailable(error, code)) {
    return new AnabranchError(
      'DATABASE_UNAVAILABLE',
      'The database does not answer. What was not acked may or may not be stored: send it again, which is safe.',
      { cause: error },
    );
  }
  return error;
}

/** Another transaction was chosen to go first; running the work again is the remedy. */
export function isRetryable(error: unknown): boolean {
  const code = (error as { code?: unknown } | null)?.code;
  return code === '40001' || code === '40P01';
}

/** Whether a translated error says that the database did not answer in time, rather than that it refused or was too slow for one statement. */
export function isSilence(error: unknown): boolean {
  const { cause } = error as { cause?: unknown };
  return (
    error instanceof AnabranchError &&
    cause instanceof Error &&
    /timeout exceeded when trying to connect|due to connection timeout|Query read timeout/i.test(cause.message)
  );
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
  // lock_not_available, query_canceled (a timeout), too many connections, and a server that starts, stops or recovers.
  '55P03',
  '57014',
  '53300',
  '57P01',
  '57P02',
  '57P03',
  '25P03',
  '40001',
  '40P01',
  // The server came back read-only, as a standby that is being promoted.
  '25006',
]);

function isUnavailable(error: Error, code: unknown): boolean {
  if (typeof code === 'string' && (UNAVAILABLE_CODES.has(code) || code.startsWith('08'))) return true;
  // Errors after a disconnect carry no code.
  return /Connection terminated|not queryable|timeout exceeded when trying to connect|Query read timeout|Client was closed|Connection ended/i.test(
    error.message,
  );
}
