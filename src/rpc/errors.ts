import { randomUUID } from 'node:crypto';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import type { PartErrorSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import {
  BadRequestSchema,
  type ErrorInfo,
  ErrorInfoSchema,
  RetryInfoSchema,
} from '../../gen/es/google/rpc/error_details_pb.js';
import { AnabranchError, type Reason, type Violation } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
import { beginning } from '../domain/text.ts';
import type { Logger } from '../stream/settings.ts';
import { fitError, fitMessage, fitPart } from './error_size.ts';

export const ERROR_DOMAIN = 'anabranch.v1';

/** The code of each reason, as error.proto documents it. STATE_NOT_FOUND has two: see `codeOf`. */
const CODES: Readonly<Record<Reason, Code>> = {
  INVALID_REQUEST: Code.InvalidArgument,
  INVALID_PAGE_TOKEN: Code.InvalidArgument,
  MESSAGE_TOO_LARGE: Code.ResourceExhausted,
  TRAJECTORY_NOT_FOUND: Code.NotFound,
  STEP_NOT_FOUND: Code.NotFound,
  CHECKPOINT_NOT_FOUND: Code.NotFound,
  TAG_NOT_FOUND: Code.NotFound,
  STATE_NOT_FOUND: Code.NotFound,
  TRAJECTORY_EXISTS: Code.AlreadyExists,
  REQUEST_ID_REUSED: Code.AlreadyExists,
  UNEXPECTED_POSITION: Code.FailedPrecondition,
  WRITER_FENCED: Code.FailedPrecondition,
  STEP_CONFLICT: Code.AlreadyExists,
  STEP_GAP: Code.OutOfRange,
  TRAJECTORY_SEALED: Code.FailedPrecondition,
  STATE_CONFLICT: Code.AlreadyExists,
  BRANCH_POINT_BEYOND_END: Code.OutOfRange,
  HAS_BRANCHES: Code.FailedPrecondition,
  TRAJECTORY_DELETED: Code.Aborted,
  RANGE_BEYOND_END: Code.OutOfRange,
  TAG_MOVED: Code.FailedPrecondition,
  DIGEST_MISMATCH: Code.InvalidArgument,
  STATE_CORRUPT: Code.DataLoss,
  STEP_CORRUPT: Code.DataLoss,
  STORAGE_FULL: Code.ResourceExhausted,
  DATABASE_UNAVAILABLE: Code.Unavailable,
  SERVER_DRAINING: Code.Unavailable,
  SLOW_READER: Code.ResourceExhausted,
  UNIMPLEMENTED: Code.Unimplemented,
  CANCELLED: Code.Canceled,
  DEADLINE_EXCEEDED: Code.DeadlineExceeded,
  INTERNAL: Code.Internal,
  EXPERIMENT_NOT_FOUND: Code.NotFound,
  RUN_NOT_FOUND: Code.NotFound,
  STAGE_NOT_FOUND: Code.NotFound,
  EXPERIMENT_EXISTS: Code.AlreadyExists,
  RUN_EXISTS: Code.AlreadyExists,
  CONFIG_MISMATCH: Code.FailedPrecondition,
  NO_MAIN_TRAJECTORY: Code.FailedPrecondition,
  ILLEGAL_TRANSITION: Code.FailedPrecondition,
  RESULT_CONFLICT: Code.AlreadyExists,
  RUN_DELETED: Code.Aborted,
  TASK_NOT_FOUND: Code.NotFound,
  GROUP_NOT_FOUND: Code.NotFound,
  ROLLOUT_NOT_FOUND: Code.NotFound,
  ENVIRONMENT_NOT_FOUND: Code.NotFound,
  ROLLOUT_EXISTS: Code.AlreadyExists,
  ENVIRONMENT_EXISTS: Code.AlreadyExists,
  LEASE_LOST: Code.FailedPrecondition,
  RUN_ACTIVE: Code.FailedPrecondition,
  MESSAGE_TIMEOUT: Code.DeadlineExceeded,
  BRANCH_TOO_DEEP: Code.FailedPrecondition,
  TOO_MANY_CONNECTIONS: Code.Unavailable,
  NO_ATTEMPT: Code.FailedPrecondition,
  ROLLOUT_CONFLICT: Code.AlreadyExists,
  QUEUE_CLOSED: Code.FailedPrecondition,
  STAGE_NOT_CLAIMABLE: Code.FailedPrecondition,
  CLAIMS_TOO_LARGE: Code.FailedPrecondition,
  STATE_PRUNED: Code.FailedPrecondition,
  RETENTION_POLICY_NOT_FOUND: Code.NotFound,
  SQLITE_ONLY: Code.FailedPrecondition,
  ARCHIVE_INVALID: Code.InvalidArgument,
  IMPORT_CONFLICT: Code.AlreadyExists,
  IMPORT_SUPERSEDED: Code.Aborted,
  STORAGE_LOST: Code.Unavailable,
  DATABASE_READ_ONLY: Code.Unavailable,
  BACKUP_IN_PROGRESS: Code.ResourceExhausted,
  MEMORY_FULL: Code.ResourceExhausted,
  UNAUTHENTICATED: Code.Unauthenticated,
  PERMISSION_DENIED: Code.PermissionDenied,
  API_KEY_NOT_FOUND: Code.NotFound,
  CALLER_LIMIT: Code.ResourceExhausted,
};

/** How long a caller should wait before a retry. */
const RETRY_AFTER_MS: Readonly<Partial<Record<Reason, number>>> = {
  STORAGE_FULL: 5_000,
  DATABASE_UNAVAILABLE: 1_000,
  SERVER_DRAINING: 200,
  TOO_MANY_CONNECTIONS: 1_000,
  STORAGE_LOST: 1_000,
  DATABASE_READ_ONLY: 5_000,
  BACKUP_IN_PROGRESS: 5_000,
  MEMORY_FULL: 1_000,
  CALLER_LIMIT: 1_000,
};

/** A read of a missing state is NOT_FOUND; a write that refers to one is FAILED_PRECONDITION. */
export type Purpose = 'read' | 'write';

export function codeOf(reason: Reason, purpose: Purpose): Code {
  return reason === 'STATE_NOT_FOUND' && purpose === 'write' ? Code.FailedPrecondition : CODES[reason];
}

/**
 * Converts a thrown error to the error that is sent: an AnabranchError with its details, a ConnectError with missing
 * details added, and any other error as INTERNAL with only the id of its log line.
 */
export function toConnectError(error: unknown, purpose: Purpose, logger: Logger): ConnectError {
  if (error instanceof AnabranchError) return fromAnabranchError(error, purpose, logger);
  const reading = toReadError(error);
  if (reading !== undefined) return fromAnabranchError(reading, purpose, logger);
  if (error instanceof ConnectError) {
    describeConnectError(error, logger);
    return error;
  }
  return internalError(error, logger);
}

/**
 * Converts the error of a call that ended too early or took too long, or whose response finds no room. Returns
 * undefined for other errors.
 */
export function toReadError(error: unknown): AnabranchError | undefined {
  switch ((error as { code?: unknown } | null)?.code) {
    case 'ERR_STREAM_PREMATURE_CLOSE':
    // What Connect aborts a call with when its HTTP/1.1 connection has closed.
    case DOMException.ABORT_ERR:
      return callerGone();
    case 'ERR_MESSAGE_TIMEOUT':
      return new AnabranchError('MESSAGE_TIMEOUT', (error as Error).message);
    case 'ERR_HEAP_FULL':
      return new AnabranchError('MEMORY_FULL', (error as Error).message);
    case 'ERR_UNREAD':
      return new AnabranchError('SLOW_READER', (error as Error).message);
    default:
      return undefined;
  }
}

function callerGone(): AnabranchError {
  return new AnabranchError('CANCELLED', 'The caller cancelled the call or disconnected.');
}

/** Returns an error as a part of a response. */
export function toPartError(error: unknown, logger: Logger): MessageInitShape<typeof PartErrorSchema> {
  const sent = toConnectError(error, 'write', logger);
  const { reason = '', metadata = {} } = errorInfoOf(sent) ?? {};
  const [retry] = sent.findDetails(RetryInfoSchema);
  const [invalid] = sent.findDetails(BadRequestSchema);
  const field = invalid?.fieldViolations[0]?.field ?? '';
  return {
    code: sent.code,
    reason,
    ...fitPart({ message: sent.rawMessage, metadata, field }),
    ...(retry?.retryDelay && { retryDelay: retry.retryDelay }),
  };
}

function fromAnabranchError(error: AnabranchError, purpose: Purpose, logger: Logger): ConnectError {
  if (error.reason === 'INTERNAL') return internalError(error.cause ?? error, logger);
  if (error.cause !== undefined) logger.warn({ err: error.cause, reason: error.reason }, error.message);
  return connectErrorOf(error, purpose);
}

/** Returns the error in the form and size in which it is sent. Its cause is not part of it. */
export function connectErrorOf(error: AnabranchError, purpose: Purpose): ConnectError {
  const { message, metadata, violations } = fitError(error);
  const details = detailsOf(error.reason, metadata, violations);
  return new ConnectError(message, codeOf(error.reason, purpose), undefined, details);
}

function internalError(cause: unknown, logger: Logger): ConnectError {
  const errorId = randomUUID();
  logger.error({ err: cause, errorId }, 'a call failed with an internal error');
  return new ConnectError(
    `Internal error. The log of the server has the details under error id ${errorId}.`,
    Code.Internal,
    undefined,
    detailsOf('INTERNAL', { error_id: errorId }, []),
  );
}

type Details = ConstructorParameters<typeof ConnectError>[3];

function detailsOf(reason: Reason, metadata: Readonly<Record<string, string>>, violations: readonly Violation[]) {
  const details: NonNullable<Details> = [
    { desc: ErrorInfoSchema, value: { reason, domain: ERROR_DOMAIN, metadata: { ...metadata } } },
  ];
  if (violations.length > 0) {
    const fieldViolations = violations.map(({ field, description }) => ({ field, description }));
    details.push({ desc: BadRequestSchema, value: { fieldViolations } });
  }
  const retryMs = RETRY_AFTER_MS[reason];
  if (retryMs !== undefined) {
    const retryDelay = { seconds: BigInt(Math.floor(retryMs / 1000)), nanos: (retryMs % 1000) * 1_000_000 };
    details.push({ desc: RetryInfoSchema, value: { retryDelay } });
  }
  return details;
}

/** Returns the ErrorInfo of Anabranch that an error has already. */
export function errorInfoOf(error: ConnectError): ErrorInfo | undefined {
  return error.findDetails(ErrorInfoSchema).find(({ domain }) => domain === ERROR_DOMAIN);
}

/**
 * Adds the code and the details of this API to an error that Connect raised outside of a handler. Errors in the request
 * get a code that says so: Connect returns INTERNAL for a message that cannot be parsed.
 */
export function describeConnectError(error: ConnectError, logger: Logger): void {
  if (errorInfoOf(error) !== undefined) return;
  // Only the health service raises NOT_FOUND. Its protocol has no details.
  if (error.code === Code.NotFound) return void Object.assign(error, { rawMessage: fitMessage(error.rawMessage) });
  const { code, rawMessage, details } = fromAnabranchError(explainConnectError(error), 'read', logger);
  // Connect writes this object next, and nothing else refers to it.
  Object.assign(error, { code, rawMessage });
  error.details.push(...details);
}

/** Returns the reason and message for an error of Connect. */
export function explainConnectError(error: ConnectError): AnabranchError {
  if (error.cause instanceof AnabranchError) return error.cause;
  const text = beginning(error.rawMessage, 500);
  switch (error.code) {
    case Code.ResourceExhausted:
      if (text.includes('writeMaxBytes')) break;
      return new AnabranchError(
        'MESSAGE_TOO_LARGE',
        `A message is larger than ${LIMITS.messageBytes} bytes: send fewer steps, points or rollouts in one message, and put large states first (PutState).`,
      );
    case Code.Unimplemented:
      return new AnabranchError('UNIMPLEMENTED', text);
    case Code.DeadlineExceeded:
      return new AnabranchError(
        'DEADLINE_EXCEEDED',
        'The deadline of the call passed. It is unknown whether unacked writes were stored. Retrying is safe.',
      );
    case Code.Canceled:
    case Code.Aborted:
    case Code.Unavailable:
      return callerGone();
    case Code.InvalidArgument:
      return new AnabranchError('INVALID_REQUEST', `The request cannot be read: ${text}`, {
        violations: jsonViolations(text),
      });
    default:
      if (/^(parse binary|received compressed|decompression failed)/.test(text)) {
        return new AnabranchError('INVALID_REQUEST', `The request cannot be read: ${text}`);
      }
      if (text.startsWith('http/2 stream closed')) return callerGone();
  }
  return new AnabranchError('INTERNAL', 'The server failed.', { cause: error });
}

/** Returns the field that the message of protobuf's JSON reader names. */
function jsonViolations(text: string): Violation[] {
  const unknown = /: key "([^"]{1,100})" is unknown/.exec(text)?.[1];
  if (unknown !== undefined) return [{ field: unknown, description: 'is not a field of this message' }];
  const field = /cannot decode field [\w.]*?(\w+) from JSON: (.*)/s.exec(text);
  return field === null ? [] : [{ field: field[1] ?? '', description: field[2] ?? '' }];
}
