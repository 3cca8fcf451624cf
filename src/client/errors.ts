import { Code, ConnectError } from '@connectrpc/connect';
import type { PartError } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import {
  BadRequestSchema,
  type ErrorInfo,
  ErrorInfoSchema,
  RetryInfoSchema,
} from '../../gen/es/google/rpc/error_details_pb.js';

/** The `domain` of every ErrorInfo that an Anabranch server sends. */
export const ERROR_DOMAIN = 'anabranch.v1';

/**
 * Returns the reason of a server error: a name of ErrorReason without its prefix, such as `STEP_CONFLICT`. Returns
 * undefined for other errors.
 */
export function reasonOf(error: unknown): string | undefined {
  return errorInfo(error)?.reason;
}

/** Whether the server did not accept the token of the call. */
export function isUnauthenticated(error: unknown): boolean {
  return error instanceof ConnectError && error.code === Code.Unauthenticated;
}

/** Returns the metadata of a server error, such as `next_step_number` or `writer_epoch`. Empty for other errors. */
export function errorMetadata(error: unknown): Readonly<Record<string, string>> {
  return errorInfo(error)?.metadata ?? {};
}

/**
 * Returns the delay that the server asks for before the next retry, in milliseconds. Undefined if the error has none.
 */
export function retryDelayMs(error: unknown): number | undefined {
  if (!(error instanceof ConnectError)) return undefined;
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return delay === undefined ? undefined : Number(delay.seconds) * 1000 + delay.nanos / 1e6;
}

/** Returns an error that is a part of a response as the error that a call would throw. */
export function errorOfPart({ code, reason, message, metadata, field, retryDelay }: PartError): ConnectError {
  const info = { desc: ErrorInfoSchema, value: { reason, domain: ERROR_DOMAIN, metadata } };
  const invalid = { desc: BadRequestSchema, value: { fieldViolations: [{ field, description: message }] } };
  const retry = { desc: RetryInfoSchema, value: retryDelay === undefined ? {} : { retryDelay } };
  const details = [info, ...(field === '' ? [] : [invalid]), ...(retryDelay === undefined ? [] : [retry])];
  return new ConnectError(message, code, undefined, details);
}

function errorInfo(error: unknown): ErrorInfo | undefined {
  if (!(error instanceof ConnectError)) return undefined;
  return error.findDetails(ErrorInfoSchema).find((info) => info.domain === ERROR_DOMAIN);
}
