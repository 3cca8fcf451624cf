import { type ClientHttp2Stream, constants, type IncomingHttpHeaders, type OutgoingHttpHeaders } from 'node:http2';
import { Code, ConnectError } from '@connectrpc/connect';
import { LIMITS } from '../../../gen/es/anabranch/v1/limits.js';
import { EnvelopeReader } from './envelope.ts';
import {
  connectionLost,
  errorOfHead,
  errorOfReset,
  errorOfStatus,
  errorOfStream,
  type Head,
  hasStatus,
} from './failure.ts';
import type { Http2Connection } from './http2_connection.ts';

/** Largest message that the client accepts. Leaves room for servers with a larger limit than this version. */
const READ_MAX_BYTES = 4 * LIMITS.messageBytes;

/** A caller who reads slowly has at most this, one piece, and Node's buffers in memory. */
const UNREAD_BYTES = 64 * 1024;

/** The longest timer of Node. */
const MAX_TIMER_MS = 2 ** 31 - 1;

const DONE: IteratorReturnResult<undefined> = { done: true, value: undefined };

/** What a call sends, and how its responses are decoded. */
export interface CallPlan<T> {
  readonly origin: string;
  readonly headers: OutgoingHttpHeaders;
  readonly signal: AbortSignal | undefined;
  /** Undefined: no deadline. */
  readonly timeoutMs: number | undefined;
  readonly decode: (bytes: Uint8Array) => T;
  /** Sends the body. An error ends the call. */
  readonly send: (stream: ClientHttp2Stream) => Promise<void> | undefined;
  /** Called once, when the call has ended. */
  readonly onEnd?: (error: ConnectError | undefined) => void;
}

interface Waiting<R> {
  readonly resolve: (result: R) => void;
  readonly reject: (error: ConnectError) => void;
}

/** One call: its deadline runs from its creation, and the responses are read from the stream that begin() opens. */
export class Call<T> {
  readonly #plan: CallPlan<T>;
  readonly #envelopes = new EnvelopeReader(READ_MAX_BYTES);
  readonly #timer: NodeJS.Timeout | undefined;
  readonly #unread: Uint8Array[] = [];
  #unreadBytes = 0;
  #connection: Http2Connection | undefined;
  #stream: ClientHttp2Stream | undefined;
  #head: IncomingHttpHeaders | undefined;
  #trailers: IncomingHttpHeaders = {};
  #opening: Waiting<void> | undefined;
  #reading: Waiting<IteratorResult<T, undefined>> | undefined;
  #hasEnded = false;
  #error: ConnectError | undefined;

  constructor(plan: CallPlan<T>) {
    this.#plan = plan;
    const { signal, timeoutMs } = plan;
    if (timeoutMs !== undefined) this.#timer = setTimeout(this.#onDeadline, Math.min(timeoutMs, MAX_TIMER_MS));
    signal?.addEventListener('abort', this.#onAbort);
    if (signal?.aborted) this.#onAbort();
  }

  /** Sends the request. Does nothing if the call has ended already. */
  begin(connection: Http2Connection): void {
    if (this.#hasEnded) return;
    this.#connection = connection;
    const stream = connection.request(this.#plan.headers);
    this.#stream = stream;
    stream.on('response', this.#onResponse);
    stream.on('trailers', this.#onTrailers);
    stream.on('end', this.#onEnd);
    stream.on('error', this.#onError);
    stream.on('close', this.#onClose);
    this.#plan.send(stream)?.catch((error) => this.fail(ConnectError.from(error, Code.Internal)));
  }

  /** The head of the response. Empty until it has arrived. */
  get head(): IncomingHttpHeaders {
    return this.#head ?? {};
  }

  /** Empty until the whole response has been read. */
  get trailers(): IncomingHttpHeaders {
    return this.#trailers;
  }

  /** Resolves when the response begins. Errors: ConnectError. */
  opened(): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#error !== undefined) reject(this.#error);
      else if (this.#hasEnded || (this.#head !== undefined && !hasStatus(this.#head))) resolve();
      else this.#opening = { resolve, reject };
    });
  }

  /** Returns the next message. Must not be called again before it has settled. Errors: ConnectError. */
  next(): Promise<IteratorResult<T, undefined>> {
    return new Promise((resolve, reject) => {
      this.#reading = { resolve, reject };
      this.#serve();
    });
  }

  /** Ends the call on both sides. Messages that are not read yet are dropped. */
  fail(error: ConnectError): void {
    if (this.#hasEnded) return;
    this.#unread.length = 0;
    this.#end(error);
  }

  readonly #onDeadline = () => this.fail(new ConnectError('the operation timed out', Code.DeadlineExceeded));

  readonly #onAbort = () => this.fail(ConnectError.from(this.#plan.signal?.reason, Code.Canceled));

  readonly #onResponse = (head: Head) => {
    this.#connection?.heard();
    this.#head = head;
    const error = errorOfHead(head, this.#plan.origin);
    if (error !== undefined) return this.#end(error);
    // Not earlier: Node emits data before the head that arrived with it.
    this.#stream?.on('data', this.#onData);
    if (hasStatus(head)) return;
    this.#opening?.resolve();
    this.#opening = undefined;
  };

  readonly #onData = (piece: Uint8Array) => {
    if (this.#hasEnded) return;
    this.#connection?.heard();
    try {
      for (const message of this.#envelopes.read(piece)) {
        this.#unread.push(message);
        this.#unreadBytes += message.length;
      }
    } catch (error) {
      return this.fail(ConnectError.from(error));
    }
    this.#serve();
    if (this.#unreadBytes > UNREAD_BYTES) this.#stream?.pause();
  };

  readonly #onTrailers = (trailers: IncomingHttpHeaders) => {
    this.#trailers = trailers;
  };

  readonly #onEnd = () => {
    const { head, trailers } = this;
    const isComplete = hasStatus(trailers) || hasStatus(head);
    // A stream that was reset ends, too. Its `close` event follows.
    if (!isComplete && this.#stream?.rstCode !== 0) return;
    const error = errorOfStatus(head, trailers);
    const isCut = error === undefined && this.#envelopes.isWithinMessage;
    this.#end(isCut ? new ConnectError('the response ended within a message', Code.Internal) : error);
  };

  readonly #onError = (error: Error) => this.#end(errorOfStream(error, this.#stream?.rstCode));

  readonly #onClose = () => {
    if (this.#hasEnded) return;
    const isLost = this.#connection?.isLost === true;
    this.#end(isLost ? connectionLost() : errorOfReset(this.#stream?.rstCode));
  };

  /** Gives the next message, or the end, to the caller who waits for it. */
  #serve(): void {
    const reading = this.#reading;
    if (reading === undefined) return;
    const bytes = this.#unread.shift();
    if (bytes === undefined && !this.#hasEnded) return;
    this.#reading = undefined;
    if (bytes !== undefined) this.#decode(bytes, reading);
    else if (this.#error !== undefined) reading.reject(this.#error);
    else reading.resolve(DONE);
  }

  #decode(bytes: Uint8Array, reading: Waiting<IteratorResult<T, undefined>>): void {
    this.#unreadBytes -= bytes.length;
    if (this.#unread.length === 0 && this.#stream?.isPaused()) this.#stream.resume();
    try {
      reading.resolve({ done: false, value: this.#plan.decode(bytes) });
    } catch (thrown) {
      const error = new ConnectError(`the server sent an invalid message: ${thrown}`, Code.Internal);
      this.fail(error);
      reading.reject(error);
    }
  }

  #end(error: ConnectError | undefined): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#error = error;
    clearTimeout(this.#timer);
    this.#plan.signal?.removeEventListener('abort', this.#onAbort);
    const stream = this.#stream;
    const isOver = stream === undefined || stream.closed || (stream.readableEnded && stream.writableEnded);
    if (!isOver) stream.close(constants.NGHTTP2_CANCEL);
    this.#plan.onEnd?.(error);
    if (error === undefined) this.#opening?.resolve();
    else this.#opening?.reject(error);
    this.#serve();
  }
}
