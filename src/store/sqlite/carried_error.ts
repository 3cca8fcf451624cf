import { AnabranchError, type Reason, type Violation } from '../../domain/errors.ts';

/** An error on its way between threads, where classes are lost. */
export type CarriedError =
  | {
      readonly reason: Reason;
      readonly message: string;
      readonly metadata: Readonly<Record<string, string>>;
      readonly violations: readonly Violation[];
      readonly cause: unknown;
    }
  | { readonly reason: undefined; readonly cause: unknown };

export function carryError(error: unknown): CarriedError {
  if (!(error instanceof AnabranchError)) return { reason: undefined, cause: error };
  const { reason, message, metadata, violations, cause } = error;
  return { reason, message, metadata, violations, cause };
}

export function arrivedError(error: CarriedError): unknown {
  if (error.reason === undefined) return error.cause;
  const { reason, message, metadata, violations, cause } = error;
  return new AnabranchError(reason, message, { metadata, violations, cause });
}
