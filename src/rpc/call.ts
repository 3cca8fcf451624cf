import {
  create,
  type DescMethod,
  type DescMethodBiDiStreaming,
  type DescMethodClientStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  type DescService,
  type Message,
} from '@bufbuild/protobuf';
import { MethodOptions_IdempotencyLevel } from '@bufbuild/protobuf/wkt';
import { Code, ConnectError, type HandlerContext, type ServiceImpl } from '@connectrpc/connect';
import { AnabranchError } from '../domain/errors.ts';
import { EncodedResponse } from '../service/answer/encoded.ts';
import type { BidiStream, Call, ClientStream, Methods, ServerStream, Unary } from '../service/method.ts';
import { PackedRequest } from '../service/trajectory/packed_request.ts';
import { type App, appWithin } from '../stream/app.ts';
import type { Logger } from '../stream/settings.ts';
import { isAudited, logAudited, logTakeOver } from './audit.ts';
import { admissionOf, cutOf, reportOf } from './caller.ts';
import type { Calls } from './calls.ts';
import { type Purpose, toConnectError, toPartError } from './errors.ts';
import { nameOf } from './method_name.ts';
import { nameField } from './named_field.ts';
import type { Validator } from './validate.ts';

/** What every handler needs. */
export interface Wire {
  readonly app: App;
  readonly logger: Logger;
  readonly validator: Validator;
  readonly calls: Calls;
}

/** The context of a call, from Connect or from the gRPC server. The signal can be created at its first use. */
export type CallContext = Pick<HandlerContext, 'signal' | 'values' | 'timeoutMs'>;

function callOf({ app, logger, validator }: Wire, context: CallContext): Call {
  const { caller, credential, load } = admissionOf(context.values);
  const scope = {
    namespace: caller.namespace,
    trace: reportOf(context.values)?.trace,
    get signal() {
      return context.signal;
    },
  };
  return {
    app: appWithin(app, scope, credential?.drain, load),
    caller,
    check: validator.check,
    errorOf: (error, schema, part) => toPartError(nameField(error, schema, part), logger),
    tookOver: (method, trajectoryId) => logTakeOver(logger, method, caller, trajectoryId),
    get signal() {
      return context.signal;
    },
  };
}

/** Returns the handlers of a service. A unary method without side effects reads (see `Purpose`). */
export function handlers<S extends DescService>(
  wire: Wire,
  service: S,
  methods: Methods<S, keyof S['method']>,
): ServiceImpl<S> {
  const made = Object.entries<AnyMethod>(methods).map(([name, method]) => [
    name,
    handlerOf(wire, service.method[name] as DescMethod, method),
  ]);
  return Object.fromEntries(made) as ServiceImpl<S>;
}

type AnyMethod =
  | Unary<DescMethodUnary>
  | ServerStream<DescMethodServerStreaming, Sent>
  | ClientStream<DescMethodClientStreaming>
  | BidiStream<DescMethodBiDiStreaming>;

/** A response of a stream. */
export type Sent = Message | EncodedResponse;

/** What serves one method: takes a request or its frames, and answers with one message or with several. */
type Handler = (input: never, context: CallContext) => Promise<Message> | AsyncIterable<Sent>;

function handlerOf(wire: Wire, method: DescMethod, implementation: AnyMethod): Handler {
  const handler = unauditedOf(wire, method, implementation);
  return isAudited(method) ? auditedOf(wire, method, handler) : handler;
}

/** Logs each call of a handler when it ends. */
function auditedOf({ logger }: Wire, method: DescMethod, handler: Handler): Handler {
  return (input: Message | AsyncIterable<Message>, context) => {
    const { caller } = admissionOf(context.values);
    const request = Symbol.asyncIterator in input ? undefined : input;
    const log = (error?: unknown) => logAudited(logger, method, caller, request, error);
    const answered = handler(input as never, context);
    if (!(answered instanceof Promise)) return loggedAtEnd(answered, context.signal, log);
    answered.then(() => log(), log);
    return answered;
  };
}

/** Logs the end of a stream: its own, or that its caller left. */
async function* loggedAtEnd<T>(
  responses: AsyncIterable<T>,
  signal: AbortSignal,
  log: (error?: unknown) => void,
): AsyncGenerator<T> {
  const end = (error?: unknown) => {
    signal.removeEventListener('abort', leave);
    log(error);
  };
  const leave = () => end(LEFT);
  if (signal.aborted) leave();
  else signal.addEventListener('abort', leave);
  try {
    yield* responses;
  } catch (error) {
    if (!signal.aborted) end(error);
    throw error;
  }
  if (!signal.aborted) end();
}

function unauditedOf(wire: Wire, method: DescMethod, implementation: AnyMethod): Handler {
  if ('messages' in implementation) return serverStream(wire, method, implementation);
  switch (method.methodKind) {
    case 'client_streaming':
      return framesToOne(wire, method, implementation as ClientStream<DescMethodClientStreaming>);
    case 'bidi_streaming':
      return framesToMany(wire, method, implementation as BidiStream<DescMethodBiDiStreaming>);
    default:
      return unary(wire, method, implementation as Unary<DescMethodUnary>);
  }
}

/** Validates the request, and converts all errors to errors of Connect. */
function unary(wire: Wire, method: DescMethod, answer: Unary<DescMethodUnary>): Handler {
  const purpose = method.idempotency === MethodOptions_IdempotencyLevel.NO_SIDE_EFFECTS ? 'read' : 'write';
  return (request: Message | PackedRequest, context) => {
    const isPacked = request instanceof PackedRequest;
    const unchecked = isPacked ? request.unchecked : request;
    const handle = async () => {
      if (unchecked !== undefined) wire.validator.check(method.input, unchecked);
      return create(method.output, await answer(request as Message, callOf(wire, context)));
    };
    const explain = (error: unknown) => nameField(error, method.input, isPacked ? request.message : request);
    return once(wire, context, { method: nameOf(method), purpose }, handle, explain);
  };
}

function framesToOne(wire: Wire, method: DescMethod, answer: ClientStream<DescMethodClientStreaming>): Handler {
  const kind = { method: nameOf(method), purpose: 'write' } as const;
  return (frames: AsyncIterable<Message>, context) =>
    once(wire, context, kind, async () => create(method.output, await answer(frames, callOf(wire, context))));
}

/** Validates the request. The call ends if its client reads nothing for too long (R3). */
function serverStream(wire: Wire, method: DescMethod, stream: ServerStream<DescMethodServerStreaming, Sent>): Handler {
  const { input } = method;
  const kind = { method: nameOf(method), purpose: 'read' } as const;
  const sending = { isWatched: true, isLarge: stream.isLarge ?? false };
  return (request: Message, context) => {
    const begin = () => {
      wire.validator.check(input, request);
      return stream.messages(request, callOf(wire, context));
    };
    return answers(wire, context, kind, begin, (error) => nameField(error, input, request), sending);
  };
}

/**
 * Returns the responses of a stream that is not an RPC, such as a download. As in RPCs, a slow reader is cut off, and
 * errors are ConnectErrors.
 */
export function streamAnswers<T>(
  wire: Wire,
  context: CallContext,
  kind: Kind,
  handle: (call: Call) => AsyncGenerator<T>,
): AsyncIterable<T> {
  return answers(wire, context, kind, () => handle(callOf(wire, context)), same, WATCHED);
}

/** What a call is, for metrics and for its errors. */
interface Kind {
  /** Such as `TrajectoryService/AppendStep`. */
  readonly method: string;
  readonly purpose: Purpose;
}

/** How the responses of a stream are sent. */
interface Sending {
  /** Whether the stream of a slow reader is ended (R3). */
  readonly isWatched: boolean;
  /** Whether each response waits for a slot before it is encoded (A5). */
  readonly isLarge: boolean;
}

const WATCHED: Sending = { isWatched: true, isLarge: false };
const UNWATCHED: Sending = { isWatched: false, isLarge: false };

function framesToMany(wire: Wire, method: DescMethod, messages: BidiStream<DescMethodBiDiStreaming>): Handler {
  const kind = { method: nameOf(method), purpose: 'write' } as const;
  return (frames: AsyncIterable<Message>, context) =>
    answers(wire, context, kind, () => messages(frames, callOf(wire, context)));
}

function once<T>(
  wire: Wire,
  context: CallContext,
  kind: Kind,
  handle: () => Promise<T>,
  explain: (error: unknown) => unknown = same,
): Promise<T> {
  const answer = handled(wire, kind, handle, explain);
  // Without a deadline, the call ends early only if the caller has disconnected; then no response is needed.
  return context.timeoutMs() === undefined ? answer : beforeDeadline(answer, context.signal);
}

async function handled<T>(
  { calls, logger }: Wire,
  { method, purpose }: Kind,
  handle: () => Promise<T>,
  explain: (error: unknown) => unknown,
): Promise<T> {
  const end = calls.begin(method);
  let answer: T;
  try {
    answer = await handle();
  } catch (error) {
    const told = toConnectError(explain(error), purpose, logger);
    end(told);
    throw told;
  }
  end();
  return answer;
}

/**
 * Returns the response. Rejects at the deadline without waiting for the handler, which may wait for work that serves
 * other callers.
 */
function beforeDeadline<T>(answer: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const end = () => reject(signal.reason);
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
    answer.finally(() => signal.removeEventListener('abort', end)).then(resolve, reject);
  });
}

/** Streams have no message in their log line, because their frames are not kept. */
function same(error: unknown): unknown {
  return error;
}

/**
 * Returns the responses of a stream. If the caller disconnects while a response waits to be written, the next one is
 * never requested. So the signal of the call also ends the generator, and its `finally` runs. A suspended generator
 * cannot end a stream either, so the stream of a slow reader is ended here.
 */
function answers<T>(
  wire: Wire,
  { signal, values }: CallContext,
  { method, purpose }: Kind,
  begin: () => AsyncGenerator<T>,
  explain: (error: unknown) => unknown = same,
  { isWatched, isLarge }: Sending = UNWATCHED,
): AsyncIterable<T> {
  const { caller, credential } = admissionOf(values);
  let inner: AsyncGenerator<T> | undefined;
  let over = false;
  let slow: AnabranchError | undefined;
  const cutOff = (resume: bigint | undefined) => {
    slow = slowReader(resume);
    cutOf(values)();
  };
  const watch = isWatched ? new ReaderWatch(wire.app.settings.slowReaderMs, cutOff) : undefined;
  const ended = wire.calls.begin(method);
  const finish = (error?: ConnectError) => {
    if (over) return;
    over = true;
    watch?.end();
    ended(error);
    signal.removeEventListener('abort', end);
  };
  const left = () => finish(LEFT);
  // A failure of the clean-up rejects the next response, if one is requested.
  const end = () => void (inner?.return(undefined) ?? Promise.resolve()).then(left, left);
  signal.addEventListener('abort', end);
  const next = async (): Promise<IteratorResult<T, undefined>> => {
    try {
      watch?.taken();
      if (slow !== undefined) throw slow;
      if (over) return { done: true, value: undefined };
      inner ??= begin();
      const result = await inner.next();
      await credential?.checked();
      if (result.done !== true) {
        if (isLarge) await wire.app.store.slots.take(caller.namespace);
        watch?.given(result.value instanceof EncodedResponse ? result.value.resumeAt : undefined);
        return result;
      }
      if (signal.aborted && signal.reason instanceof ConnectError) throw signal.reason;
      finish();
      return result;
    } catch (error) {
      const told = toConnectError(explain(error), purpose, wire.logger);
      finish(told);
      throw told;
    }
  };
  const stop = async (): Promise<IteratorResult<T, undefined>> => {
    end();
    return { done: true, value: undefined };
  };
  return { [Symbol.asyncIterator]: () => ({ next, return: stop, throw: stop }) };
}

/** How a stream ends whose caller has left. */
const LEFT = new ConnectError('the caller left', Code.Canceled);

/** R3: detects a client that does not read a response for too long. Uses one timer for each stream. */
class ReaderWatch {
  readonly #limitMs: number;
  readonly #onSlow: (next: bigint | undefined) => void;
  #timer: NodeJS.Timeout | undefined;
  #untaken: { readonly next: bigint | undefined } | undefined;

  constructor(limitMs: number, onSlow: (next: bigint | undefined) => void) {
    this.#limitMs = limitMs;
    this.#onSlow = onSlow;
  }

  /** Must be called for each response. A client that does not receive it can continue at `next`. */
  given(next: bigint | undefined): void {
    this.#untaken = { next };
    if (this.#timer === undefined) this.#timer = setTimeout(() => this.#check(), this.#limitMs).unref();
    else this.#timer.refresh();
  }

  taken(): void {
    this.#untaken = undefined;
  }

  end(): void {
    this.#untaken = undefined;
    clearTimeout(this.#timer);
  }

  #check(): void {
    if (this.#untaken !== undefined) this.#onSlow(this.#untaken.next);
  }
}

/** `next` is the first step that the client has not read; undefined in a stream without steps. */
function slowReader(next: bigint | undefined): AnabranchError {
  const how =
    next === undefined ? 'read again' : `continue after the last step that arrived, or at start_step_number ${next}`;
  return new AnabranchError(
    'SLOW_READER',
    `The reader received nothing for too long, so the server ended the stream: ${how}.`,
    { metadata: next === undefined ? {} : { next_step_number: `${next}` } },
  );
}
