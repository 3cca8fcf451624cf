import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type ClientSessionOptions,
  connect,
  constants,
  type OutgoingHttpHeaders,
} from 'node:http2';
import { createConnection } from 'node:net';
import type { SecureContextOptions } from 'node:tls';
import { Code, ConnectError } from '@connectrpc/connect';

/** Pings detect a dead peer or path within 45 seconds, also while an open stream is idle. */
const PING_AFTER_MS = 30_000;
const PONG_WITHIN_MS = 15_000;

/** In MB. Node's default of 10 refuses streams while many of them have a frame in flight. */
const OPTIONS: ClientSessionOptions = { maxSessionMemory: 128 };

/** How to reach a server. */
export interface Route {
  readonly origin: string;
  /** Path of a Unix socket. */
  readonly socket?: string | undefined;
  /** For TLS. */
  readonly tls: SecureContextOptions;
}

/** One HTTP/2 connection. It keeps the process alive while it has streams. */
export class Http2Connection {
  readonly #session: ClientHttp2Session;
  #streams = 0;
  #heardAt = performance.now();
  #timer: NodeJS.Timeout | undefined;
  #answer: Promise<void> | undefined;

  /** Begins to connect. If that fails, the streams of the connection fail. */
  constructor({ origin, socket, tls }: Route, onClose: () => void) {
    const over = socket === undefined ? {} : { createConnection: () => createConnection(socket) };
    this.#session = connect(origin, { ...OPTIONS, ...tls, ...over });
    this.#session.unref();
    // Every call gets the error from its own stream.
    this.#session.on('error', () => undefined);
    this.#session.once('close', () => {
      clearTimeout(this.#timer);
      onClose();
    });
  }

  /** Number of open streams. */
  get streams(): number {
    return this.#streams;
  }

  /** Whether new streams can be opened: the connection is neither lost nor draining after a GOAWAY. */
  get isUsable(): boolean {
    return !this.#session.closed && !this.#session.destroyed;
  }

  get isLost(): boolean {
    return this.#session.destroyed;
  }

  /** Whether nothing has arrived for so long that a ping must show that the peer is still there. */
  get isQuiet(): boolean {
    return performance.now() - this.#heardAt > PING_AFTER_MS;
  }

  /** Opens a stream. Throws for invalid headers. */
  request(headers: OutgoingHttpHeaders): ClientHttp2Stream {
    const stream = this.#session.request(headers, { endStream: false });
    this.#streams += 1;
    if (this.#streams === 1) {
      this.#session.ref();
      this.#timer ??= setTimeout(this.#check, PING_AFTER_MS).unref();
    }
    stream.once('close', this.#onStreamClose);
    return stream;
  }

  /** Records that something has arrived. */
  heard(): void {
    this.#heardAt = performance.now();
  }

  /**
   * Pings the peer. Resolves when the peer has answered, or the connection is no longer usable. Ends a connection whose
   * peer does not answer in time.
   */
  ping(): Promise<void> {
    this.#answer ??= new Promise<void>((resolve) => {
      const session = this.#session;
      const timer = setTimeout(() => this.abort(new ConnectError('PING timed out', Code.Unavailable)), PONG_WITHIN_MS);
      const done = () => {
        clearTimeout(timer);
        session.off('close', done);
        this.#answer = undefined;
        resolve();
      };
      const send = () =>
        session.ping((error) => {
          if (error === null) this.heard();
          done();
        });
      session.once('close', done);
      if (session.connecting) session.once('connect', send);
      else send();
    });
    return this.#answer;
  }

  /** Ends the connection. All its streams fail with this error. */
  abort(error: ConnectError): void {
    this.#session.destroy(error, constants.NGHTTP2_CANCEL);
  }

  readonly #onStreamClose = () => {
    this.#streams -= 1;
    if (this.#streams === 0) this.#session.unref();
  };

  readonly #check = async () => {
    if (this.isQuiet && this.#streams > 0) await this.ping();
    this.#timer = undefined;
    if (this.#streams === 0 || !this.isUsable) return;
    const left = this.#heardAt + PING_AFTER_MS - performance.now();
    this.#timer = setTimeout(this.#check, Math.max(1, left)).unref();
  };
}
