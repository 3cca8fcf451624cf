import type { IncomingHttpHeaders, ServerHttp2Stream } from 'node:http2';
import type { DescMethod, Message } from '@bufbuild/protobuf';
import type { ConnectError, ContextValues } from '@connectrpc/connect';
import { parseTimeout } from '@connectrpc/connect/protocol-grpc';
import type { UnsentMessages } from '../../listen/unsent.ts';
import type { Logger } from '../../stream/settings.ts';
import type { CallContext, Sent } from '../call.ts';
import type { CallReport } from '../call_report.ts';
import { admissionOf, cutOf, reportOf } from '../caller.ts';
import { toConnectError } from '../errors.ts';
import type { Intake, Received } from '../http.ts';
import type { MessageGuard } from '../message_guard.ts';
import { GrpcContext } from './context.ts';
import { type Envelope, encodeMessage, Messages } from './envelope.ts';
import { Reply } from './reply.ts';

/** A method and its handler. */
export interface Served {
  readonly method: DescMethod;
  readonly answer: (
    input: Received | AsyncIterable<Received>,
    context: CallContext,
  ) => Promise<Message> | AsyncIterable<Sent>;
}

/** Returns whether a request is a stream of messages instead of one message. */
export function takesStream({ methodKind }: DescMethod): boolean {
  return methodKind === 'client_streaming' || methodKind === 'bidi_streaming';
}

const CONTENT_TYPES = new Set(['application/grpc', 'application/grpc+proto']);

/**
 * Returns whether an HTTP/2 call has the form that nearly all gRPC clients use: binary, uncompressed, with a future
 * deadline or none. Browsers do not use it.
 */
export function isPlain(headers: IncomingHttpHeaders): boolean {
  const {
    ':method': method,
    'content-type': type = '',
    'grpc-encoding': encoding = 'identity',
    origin,
    expect,
  } = headers;
  if (method !== 'POST' || !CONTENT_TYPES.has(type) || encoding !== 'identity') return false;
  if (origin !== undefined || expect !== undefined) return false;
  return headers['grpc-timeout'] === undefined || (timeoutOf(headers) ?? 0) >= 1;
}

/** Returns the time until the caller's deadline. Undefined: there is none, or it cannot be read. */
export function timeoutOf({ 'grpc-timeout': timeout }: IncomingHttpHeaders): number | undefined {
  if (timeout === undefined) return undefined;
  const { timeoutMs, error } = parseTimeout(String(timeout), Number.MAX_SAFE_INTEGER);
  return error === undefined ? timeoutMs : undefined;
}

/**
 * Serves plain gRPC without Connect, which takes many times as long for a small call
 * (docs/decisions/0014-plain-grpc-has-a-short-path.md). The handlers and their responses are the same.
 */
export class PlainGrpc {
  readonly #logger: Logger;
  readonly #guard: MessageGuard;
  readonly #unsent: UnsentMessages;
  readonly #encoded = new WeakMap<Sent, Envelope>();

  constructor(logger: Logger, guard: MessageGuard, unsent: UnsentMessages) {
    this.#logger = logger;
    this.#guard = guard;
    this.#unsent = unsent;
  }

  /** Never rejects. The values have the report of the call. */
  async serve(
    served: Served,
    stream: ServerHttp2Stream,
    intake: Intake,
    values: ContextValues,
    timeoutMs: number | undefined,
  ): Promise<void> {
    const { method } = served;
    const report = reportOf(values)!;
    const context = new GrpcContext(stream, values, timeoutMs);
    const messages = new Messages(intake, method.input, this.#guard);
    try {
      const reply = new Reply(stream, this.#unsent, report.requestId);
      const error = await this.#answer(served, messages, context, reply, report);
      report.end(method, admissionOf(values).caller, error);
    } catch (error) {
      // The handler has finished, so this is a failure to write its response.
      this.#logger.error({ err: error, rpc: method.name }, 'an error response could not be written');
      cutOf(values)();
    }
  }

  /** A message that several streams send is encoded once. */
  #encode({ output }: DescMethod, message: Sent): Envelope {
    const known = this.#encoded.get(message);
    if (known !== undefined) return known;
    const envelope = encodeMessage(output, message);
    this.#encoded.set(message, envelope);
    return envelope;
  }

  /** Returns the error that was sent. Undefined: the call succeeded. */
  async #answer(
    { method, answer }: Served,
    messages: Messages,
    context: GrpcContext,
    reply: Reply,
    report: CallReport,
  ): Promise<ConnectError | undefined> {
    try {
      const answered = answer(takesStream(method) ? messages : await messages.only(), context);
      if (!(Symbol.asyncIterator in answered)) {
        // A caller that does not read its response must not keep the slot.
        const response = await answered.finally(() => messages.handOver());
        await reply.answer(encodeMessage(method.output, response));
        return undefined;
      }
      for await (const message of answered) await reply.send(this.#encode(method, message));
      reply.end();
      return undefined;
    } catch (error) {
      const told = toConnectError(error, 'read', this.#logger);
      reply.fail(report.mark(told));
      return told;
    } finally {
      context.end();
    }
  }
}
