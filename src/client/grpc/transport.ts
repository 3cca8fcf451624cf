import type { OutgoingHttpHeaders } from 'node:http2';
import {
  create,
  type DescMessage,
  type DescMethod,
  type DescMethodStreaming,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf';
import {
  Code,
  ConnectError,
  createContextValues,
  type Interceptor,
  type StreamResponse,
  type Transport,
  type UnaryResponse,
} from '@connectrpc/connect';
import { createMethodUrl, runStreamingCall, runUnaryCall } from '@connectrpc/connect/protocol';
import { VERSION } from '../../../gen/es/anabranch/v1/limits.js';
import type { Access } from '../access.ts';
import { UNARY_DEADLINE_MS } from '../calls.ts';
import { isUnauthenticated } from '../errors.ts';
import { traceHeaders } from '../trace_context.ts';
import { Call, type CallPlan } from './call.ts';
import type { ConnectionPool } from './connection_pool.ts';
import { envelopeOf } from './envelope.ts';
import { webHeaders } from './failure.ts';
import { Upload } from './upload.ts';

/** Streams of a connection that are left for unary calls: a call beyond the server's limit waits without notice. */
const STREAMS_FOR_CALLS = 10;

/** The largest number that a `grpc-timeout` can have. */
const MAX_TIMEOUT_MS = 99_999_999;

const HEADERS: OutgoingHttpHeaders = { ':method': 'POST', 'content-type': 'application/grpc+proto', te: 'trailers' };
const USER_AGENT = `anabranch-node/${VERSION}`;

/** How a client makes its calls. */
interface TransportOptions {
  readonly origin: string;
  readonly pool: ConnectionPool;
  readonly access: Access;
  /** The first one is the outermost. */
  readonly interceptors: readonly Interceptor[];
  /** Streams that the server accepts on a connection. */
  readonly streamsPerConnection: () => number;
}

type HeadersInit = ConstructorParameters<typeof Headers>[0];

/** The options of one call. */
interface CallOptions {
  readonly signal: AbortSignal | undefined;
  /** Undefined: no deadline. */
  readonly timeoutMs: number | undefined;
  readonly header: HeadersInit | undefined;
}

/**
 * Makes the calls of a client: gRPC over HTTP/2. Connect's own transport passes each message through a dozen
 * asynchronous generators (docs/decisions/0014-plain-grpc-has-a-short-path.md).
 */
export class GrpcTransport implements Transport {
  readonly #options: TransportOptions;
  readonly #interceptors: Interceptor[];

  constructor(options: TransportOptions) {
    this.#options = options;
    this.#interceptors = [...options.interceptors];
  }

  unary: Transport['unary'] = async (method, signal, timeoutMs = UNARY_DEADLINE_MS, ...rest) => {
    const [header, input, contextValues] = rest;
    const options = { signal, timeoutMs: timeoutMs > 0 ? timeoutMs : undefined, header };
    if (this.#interceptors.length === 0) return await this.#unary(method, options, input);
    return await runUnaryCall({
      ...this.#intercepted(options),
      req: { ...this.#request(method, header, contextValues), stream: false, method, message: input },
      next: (request) => this.#unary(method, { ...options, ...request }, request.message),
    });
  };

  stream: Transport['stream'] = async (method, signal, timeoutMs = 0, ...rest) => {
    const [header, input, contextValues] = rest;
    const options = { signal, timeoutMs: timeoutMs > 0 ? timeoutMs : undefined, header };
    if (this.#interceptors.length === 0) return await this.#stream(method, options, input);
    return await runStreamingCall({
      ...this.#intercepted(options),
      req: { ...this.#request(method, header, contextValues), stream: true, method, message: input },
      next: (request) => this.#stream(method, { ...options, ...request }, request.message),
    });
  };

  async #unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    options: CallOptions,
    input: MessageInitShape<I>,
  ): Promise<UnaryResponse<I, O>> {
    const body = encode(method.input, input);
    try {
      return await this.#ask(method, options, body);
    } catch (error) {
      if (!isUnauthenticated(error) || !this.#options.access.refused()) throw error;
      return await this.#ask(method, options, body);
    }
  }

  async #ask<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    options: CallOptions,
    body: Uint8Array,
  ): Promise<UnaryResponse<I, O>> {
    const call = this.#begin(method, options, Number.POSITIVE_INFINITY, {
      send: (stream) => {
        stream.end(body);
        return undefined;
      },
    });
    const first = await call.next();
    if (first.done === true) throw new ConnectError('the server sent no response message', Code.Unimplemented);
    if ((await call.next()).done !== true) {
      const error = new ConnectError('the server sent more than one response message', Code.Unimplemented);
      call.fail(error);
      throw error;
    }
    return {
      stream: false,
      service: method.parent,
      method,
      message: first.value,
      // Few callers read headers.
      get header() {
        return webHeaders(call.head);
      },
      get trailer() {
        return webHeaders(call.trailers);
      },
    };
  }

  async #stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodStreaming<I, O>,
    options: CallOptions,
    input: AsyncIterable<MessageInitShape<I>>,
  ): Promise<StreamResponse<I, O>> {
    const upload = new Upload(input, (message) => encode(method.input, message));
    const room = Math.max(1, this.#options.streamsPerConnection() - STREAMS_FOR_CALLS);
    const call = this.#begin(method, options, room, {
      send: (stream) => upload.sendTo(stream),
      onEnd: (error) => {
        upload.stop();
        // The stream is opened again by its user.
        if (isUnauthenticated(error)) this.#options.access.refused();
      },
    });
    await call.opened();
    return {
      stream: true,
      service: method.parent,
      method,
      message: { [Symbol.asyncIterator]: () => ({ next: () => call.next() }) },
      header: webHeaders(call.head),
      get trailer() {
        return webHeaders(call.trailers);
      },
    };
  }

  #begin<O extends DescMessage>(
    method: DescMethod & { readonly output: O },
    { signal, timeoutMs, header }: CallOptions,
    room: number,
    sending: Pick<CallPlan<never>, 'send' | 'onEnd'>,
  ): Call<MessageShape<O>> {
    const { origin, pool, access } = this.#options;
    const headers: OutgoingHttpHeaders = { ...HEADERS, ':path': `/${method.parent.typeName}/${method.name}` };
    if (timeoutMs !== undefined) headers['grpc-timeout'] = `${Math.min(Math.ceil(timeoutMs), MAX_TIMEOUT_MS)}m`;
    if (header !== undefined) for (const [name, value] of new Headers(header)) headers[name] ??= value;
    headers['user-agent'] ??= USER_AGENT;
    for (const [name, value] of Object.entries(traceHeaders())) headers[name] ??= value;
    const decode = (bytes: Uint8Array) => fromBinary(method.output, bytes);
    const call = new Call({ origin, headers, signal, timeoutMs, decode, ...sending });
    const begin = (who: OutgoingHttpHeaders) =>
      pool.connect(room, (connection) => {
        for (const name of Object.keys(who)) headers[name] ??= who[name];
        call.begin(connection);
      });
    const { known } = access;
    (known === undefined ? access.load().then(begin) : begin(known)).catch((error) =>
      call.fail(ConnectError.from(error)),
    );
    return call;
  }

  /** Returns what interceptors get of a request, besides its message. */
  #request<M extends DescMethod>(method: M, header: HeadersInit | undefined, contextValues = createContextValues()) {
    const url = createMethodUrl(this.#options.origin, method);
    return { service: method.parent, requestMethod: 'POST', url, header: new Headers(header), contextValues };
  }

  #intercepted({ signal, timeoutMs }: CallOptions) {
    return {
      interceptors: this.#interceptors,
      ...(signal === undefined ? {} : { signal }),
      ...(timeoutMs === undefined ? {} : { timeoutMs }),
    };
  }
}

function encode<I extends DescMessage>(schema: I, message: MessageInitShape<I>): Uint8Array {
  try {
    return envelopeOf(toBinary(schema, create(schema, message)));
  } catch (error) {
    throw ConnectError.from(error, Code.Internal);
  }
}
