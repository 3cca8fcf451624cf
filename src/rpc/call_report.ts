import type { IncomingHttpHeaders } from 'node:http';
import type { DescMethod } from '@bufbuild/protobuf';
import { Code, type ConnectError } from '@connectrpc/connect';
import { RequestInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import type { Principal } from '../domain/caller.ts';
import type { CallTrace, Logger, Tracing } from '../stream/settings.ts';
import { errorInfoOf } from './errors.ts';
import { nameOf } from './method_name.ts';

/** Header with the id of a request, in requests and in responses. */
export const REQUEST_ID = 'x-request-id';
/** Other ids are replaced. */
const ACCEPTED = /^[\w.:/+=@-]{1,128}$/;
const TRACE_PARENT = /^[\da-f]{2}-([\da-f]{32})-/;

/** A line of the log about a call: the closed set of its fields. None has content or a parameter. */
interface CallLine {
  readonly requestId: string;
  readonly method: string;
  /** `OK`, or the code of the error. */
  readonly code: string;
  readonly durationMs: number;
  /** Absent for calls that need no credential. */
  readonly principal?: string;
  readonly namespace?: string;
  /** Absent unless the call is traced, or its caller traces it. */
  readonly traceId?: string | undefined;
}

/** Codes for which the server or its database is to blame. */
const FAULTS: ReadonlySet<Code> = new Set([Code.Internal, Code.Unknown, Code.DataLoss, Code.Unavailable]);
/** A reason of UNAVAILABLE that is no fault. */
const DRAINING = 'SERVER_DRAINING';
/** A unary call that takes longer is logged, in milliseconds. */
const SLOW_MS = 1000;
/** These wait until there is something for them. */
const WAITING: ReadonlySet<string> = new Set(['RolloutService/ClaimRollouts']);

/** Makes the reports of calls. */
export class CallReports {
  readonly #logger: Logger;
  readonly #prefix: string;
  readonly #tracing: Tracing | undefined;
  #made = 0;

  /** `prefix` begins the ids that this server makes. */
  constructor(logger: Logger, tracing: Tracing | undefined, prefix: string) {
    this.#logger = logger;
    this.#tracing = tracing;
    this.#prefix = prefix;
  }

  begin(headers: IncomingHttpHeaders): CallReport {
    return new CallReport(this.#logger, this.#tracing, headers, this.#idOf(headers[REQUEST_ID]));
  }

  #idOf(given: string | string[] | undefined): string {
    if (typeof given === 'string' && ACCEPTED.test(given)) return given;
    this.#made += 1;
    return `${this.#prefix}-${this.#made.toString(36)}`;
  }
}

/** What is told about one call: to its caller and to the log. */
export class CallReport {
  readonly requestId: string;
  /** Undefined: the call is not traced. */
  trace: CallTrace | undefined;
  readonly #logger: Logger;
  readonly #tracing: Tracing | undefined;
  readonly #headers: IncomingHttpHeaders;
  readonly #begun = performance.now();

  constructor(logger: Logger, tracing: Tracing | undefined, headers: IncomingHttpHeaders, requestId: string) {
    this.#logger = logger;
    this.#tracing = tracing;
    this.#headers = headers;
    this.requestId = requestId;
  }

  /** Begins to trace the call, once it is admitted. Downloads are not traced. */
  admitted(method: DescMethod): void {
    this.trace = this.#tracing?.call(nameOf(method), this.#headers);
  }

  /** Adds the id of the request to an error that is about to be sent. */
  mark(error: ConnectError): ConnectError {
    error.details.push({ desc: RequestInfoSchema, value: { requestId: this.requestId } });
    return error;
  }

  /**
   * Logs the call, or the download of this name: faults and slow calls as warnings, all others at the level `debug`.
   */
  end(method: DescMethod | string, caller: Principal | undefined, error: ConnectError | undefined): void {
    const durationMs = Math.round((performance.now() - this.#begun) * 100) / 100;
    this.trace?.end(error && codeName(error.code));
    const isDownload = typeof method === 'string';
    const name = isDownload ? method : nameOf(method);
    const line: CallLine = {
      requestId: this.requestId,
      method: name,
      code: error === undefined ? 'OK' : codeName(error.code),
      durationMs,
      ...(caller && { principal: caller.actor, namespace: caller.namespace }),
      traceId: this.#traceId,
    };
    if (error !== undefined && isFault(error)) this.#logger.warn(line, 'a call failed');
    else if (durationMs > SLOW_MS && !isDownload && method.methodKind === 'unary' && !WAITING.has(name))
      this.#logger.warn(line, 'a call was slow');
    else this.#logger.debug(line, 'a call ended');
  }

  get #traceId(): string | undefined {
    return this.trace?.traceId ?? TRACE_PARENT.exec(String(this.#headers.traceparent ?? ''))?.[1];
  }
}

function isFault(error: ConnectError): boolean {
  return FAULTS.has(error.code) && errorInfoOf(error)?.reason !== DRAINING;
}

/** `NOT_FOUND`, as gRPC writes codes. */
export function codeName(code: Code): string {
  return Code[code].replace(/(?<=[a-z])(?=[A-Z])/g, '_').toUpperCase();
}
