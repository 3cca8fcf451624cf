import type { ServerHttp2Stream } from 'node:http2';
import { Code, ConnectError, type ContextValues } from '@connectrpc/connect';
import type { CallContext } from '../call.ts';

/**
 * The reason with which the signal of a finished call is aborted. One shared error, because creating an error captures
 * its stack.
 */
const OVER = new Error('the call is over');

/**
 * The context of a call for its handler. The signal is created at its first use, because appends to an open stream
 * never use it.
 */
export class GrpcContext implements CallContext {
  readonly values: ContextValues;
  readonly #stream: ServerHttp2Stream;
  readonly #deadline: number | undefined;
  #controller: AbortController | undefined;
  #timer: NodeJS.Timeout | undefined;
  #over = false;

  constructor(stream: ServerHttp2Stream, values: ContextValues, timeoutMs: number | undefined) {
    this.#stream = stream;
    this.values = values;
    this.#deadline = timeoutMs === undefined ? undefined : performance.now() + timeoutMs;
  }

  /** The time until the caller's deadline. Undefined: no deadline. */
  timeoutMs(): number | undefined {
    return this.#deadline === undefined ? undefined : this.#deadline - performance.now();
  }

  get signal(): AbortSignal {
    this.#controller ??= this.#watch(new AbortController());
    return this.#controller.signal;
  }

  /** Called once the call has been answered, or cannot be answered. */
  end(): void {
    this.#over = true;
    if (this.#controller === undefined) return;
    this.#stream.off('close', this.#onClose);
    clearTimeout(this.#timer);
    this.#controller.abort(OVER);
  }

  #watch(controller: AbortController): AbortController {
    if (this.#over) controller.abort(OVER);
    else if (this.#stream.destroyed) controller.abort(callerGone());
    else {
      this.#stream.once('close', this.#onClose);
      if (this.#deadline !== undefined) {
        this.#timer = setTimeout(this.#onDeadline, this.#deadline - performance.now()).unref();
      }
    }
    return controller;
  }

  readonly #onClose = () => this.#controller?.abort(callerGone());

  readonly #onDeadline = () =>
    this.#controller?.abort(new ConnectError('the operation timed out', Code.DeadlineExceeded));
}

export function callerGone(): ConnectError {
  return new ConnectError('http/2 stream closed', Code.Canceled);
}
