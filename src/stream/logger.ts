import { isReadOnly } from '../domain/errors.ts';

/** The part of pino's interface that is used. Payloads are never logged. */
export interface Logger {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** Logs that work in the background failed. A read-only database is not logged for each of its works. */
export function logFailure(logger: Logger, error: unknown, message: string, fields: object = {}): void {
  logger[isReadOnly(error) ? 'debug' : 'warn']({ ...fields, err: error }, message);
}
