import type { Http2ServerRequest, Http2ServerResponse } from 'node:http2';
import type { DescMessage, DescMethod, Message } from '@bufbuild/protobuf';
import type { Code, ContextValues } from '@connectrpc/connect';
import { parseTimeout } from '@connectrpc/connect/protocol-grpc';
import type { UnsentMessages } from '../../listen/unsent.ts';
import type { Logger } from '../../stream/settings.ts';
import type { CallContext, Sent } from '../call.ts';
import { handOverOf, logCall } from '../caller.ts';
import { toConnectError } from '../errors.ts';
import { cutCall, type HttpRequest, type HttpResponse, type Received } from '../http.ts';
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

/** One call of plain gRPC. */
interface PlainCall {
  readonly request: Http2ServerRequest;
  readonly response: Http2ServerResponse;
  readonly timeoutMs: number | undefined;
}

const CONTENT_TYPES = new Set(['application/grpc', 'application/grpc+proto']);

/**
 * Returns the call if it has the form that nearly all gRPC clients use: HTTP/2, binary, uncompressed, with a future
 * deadline or none.
 */
export function plainCall(request: HttpRequest, response: HttpResponse): PlainCall | undefined {
  if (!('stream' in request) || !('stream' in response) || request.method !== 'POST') return undefined;
  const { 'content-type': type, 'grpc-encoding': encoding = 'identity', 'grpc-timeout': timeout } = request.headers;
  if (!CONTENT_TYPES.has(type ?? '') || encoding !== 'identity') return undefined;
  if (timeout === undefined) return { request, response, timeoutMs: undefined };
  const { timeoutMs, error } = parseTimeout(String(timeout), Number.MAX_SAFE_INTEGER);
  return error === undefined && timeoutMs !== undefined && timeoutMs >= 1
    ? { request, response, timeoutMs }
    : undefined;
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

  /** Never rejects. */
  async serve(served: Served, { request, response, timeoutMs }: PlainCall, values: ContextValues): Promise<void> {
    const { method } = served;
    const begunAt = performance.now();
    const context = new GrpcContext(response.stream, values, timeoutMs);
    const check = (schema: DescMessage, bytes: Uint8Array) => this.#guard.check(schema, bytes);
    const messages = new Messages(request, method.input, check, handOverOf(values));
    try {
      const code = await this.#answer(served, messages, context, new Reply(response, this.#unsent));
      logCall(this.#logger, method, 'grpc', code, begunAt);
    } catch (error) {
      // The handler has finished, so this is a failure to write its response.
      this.#logger.error({ err: error, rpc: method.name }, 'an error response could not be written');
      cutCall(request);
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

  /** The code of the error response. Undefined: the call succeeded. */
  async #answer(
    { method, answer }: Served,
    messages: Messages,
    context: GrpcContext,
    reply: Reply,
  ): Promise<Code | undefined> {
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
      reply.fail(told);
      return told.code;
    } finally {
      context.end();
    }
  }
}
