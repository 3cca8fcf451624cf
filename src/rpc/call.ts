import type {
  DescMethodBiDiStreaming,
  DescMethodClientStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
  MessageShape,
} from '@bufbuild/protobuf';
import { ConnectError, type HandlerContext, type MethodImpl } from '@connectrpc/connect';
import type { App } from '../app/app.ts';
import type { Caller } from '../domain/caller.ts';
import { callerOf, cutOf } from './caller.ts';
import { type Purpose, toConnectError } from './errors.ts';
import type { Logger } from './logger.ts';
import type { Validator } from './validate.ts';

/** What every handler stands on. */
export interface Wire {
  readonly app: App;
  readonly logger: Logger;
  readonly validator: Validator;
  readonly activity: Activity;
}

/** Handlers under way; 0 once every client has gone. */
export interface Activity {
  handlers: number;
}

/** What a handler knows of its call beside the request. */
export interface Call {
  readonly caller: Caller;
  /** Aborted when the caller has gone, its deadline has passed, or the call is over. */
  readonly signal: AbortSignal;
  /** Ends the stream at once, although its reader does not read. */
  readonly cut: () => void;
}

function callOf(context: HandlerContext): Call {
  return { caller: callerOf(context.values), signal: context.signal, cut: cutOf(context.values) };
}

type Request<M extends { readonly input: DescMethodUnary['input'] }> = MessageShape<M['input']>;
type Answer<M extends { readonly output: DescMethodUnary['output'] }> = MessageShape<M['output']>;

/** A unary handler: the request keeps its rules, and whatever is thrown goes out as an error of ours. */
export function unary<M extends DescMethodUnary>(
  wire: Wire,
  method: M,
  purpose: Purpose,
  handle: (request: Request<M>, call: Call) => Promise<Answer<M>>,
): MethodImpl<M> {
  const impl = (request: Request<M>, context: HandlerContext): Promise<Answer<M>> =>
    once(wire, purpose, () => {
      wire.validator.check(method.input, request);
      return handle(request, callOf(context));
    });
  return impl as unknown as MethodImpl<M>;
}

/** A client-streaming handler; it checks its frames itself. */
export function clientStream<M extends DescMethodClientStreaming>(
  wire: Wire,
  _method: M,
  handle: (frames: AsyncIterable<Request<M>>, call: Call) => Promise<Answer<M>>,
): MethodImpl<M> {
  const impl = (frames: AsyncIterable<Request<M>>, context: HandlerContext): Promise<Answer<M>> =>
    once(wire, 'write', () => handle(frames, callOf(context)));
  return impl as unknown as MethodImpl<M>;
}

/** A server-streaming handler: the request keeps its rules. */
export function serverStream<M extends DescMethodServerStreaming>(
  wire: Wire,
  method: M,
  handle: (request: Request<M>, call: Call) => AsyncGenerator<Answer<M>>,
): MethodImpl<M> {
  const impl = (request: Request<M>, context: HandlerContext): AsyncIterable<Answer<M>> =>
    answers(wire, context, 'read', () => {
      wire.validator.check(method.input, request);
      return handle(request, callOf(context));
    });
  return impl as unknown as MethodImpl<M>;
}

/** A bidirectional handler; it checks its frames itself. */
export function bidiStream<M extends DescMethodBiDiStreaming>(
  wire: Wire,
  _method: M,
  handle: (frames: AsyncIterable<Request<M>>, call: Call) => AsyncGenerator<Answer<M>>,
): MethodImpl<M> {
  const impl = (frames: AsyncIterable<Request<M>>, context: HandlerContext): AsyncIterable<Answer<M>> =>
    answers(wire, context, 'write', () => handle(frames, callOf(context)));
  return impl as unknown as MethodImpl<M>;
}

async function once<T>(wire: Wire, purpose: Purpose, handle: () => Promise<T>): Promise<T> {
  wire.activity.handlers += 1;
  try {
    return await handle();
  } catch (error) {
    throw toConnectError(error, purpose, wire.logger);
  } finally {
    wire.activity.handlers -= 1;
  }
}

/**
 * The answers of a stream. When the caller goes while an answer waits to be written, nobody asks for the next one any more: so the call's signal
 * ends the generator too, and its `finally` runs.
 */
function answers<T>(
  wire: Wire,
  { signal }: HandlerContext,
  purpose: Purpose,
  begin: () => AsyncGenerator<T>,
): AsyncIterable<T> {
  let inner: AsyncGenerator<T> | undefined;
  let over = false;
  wire.activity.handlers += 1;
  const finish = () => {
    if (over) return;
    over = true;
    wire.activity.handlers -= 1;
    signal.removeEventListener('abort', end);
  };
  // A failure of the clean-up is told to whoever waits for the next answer, if anybody does.
  const end = () => void (inner?.return(undefined) ?? Promise.resolve()).then(finish, finish);
  signal.addEventListener('abort', end);
  const next = async (): Promise<IteratorResult<T, undefined>> => {
    try {
      if (over) return { done: true, value: undefined };
      inner ??= begin();
      const result = await inner.next();
      if (result.done !== true) return result;
      finish();
      if (signal.aborted && signal.reason instanceof ConnectError) throw signal.reason;
      return result;
    } catch (error) {
      finish();
      throw toConnectError(error, purpose, wire.logger);
    }
  };
  const stop = async (): Promise<IteratorResult<T, undefined>> => {
    end();
    return { done: true, value: undefined };
  };
  return { [Symbol.asyncIterator]: () => ({ next, return: stop, throw: stop }) };
}
