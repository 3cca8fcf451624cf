import http from 'node:http';
import http2, { constants } from 'node:http2';
import net from 'node:net';
import { SlotQueue } from '../queue/slot_queue.ts';
import type { WatchedFiles } from '../watched_files.ts';
import { type ListenAddress, ListenError, type Listening, listenOn } from './address.ts';
import { SMALL_BYTES } from './body.ts';
import { type CertificateFacts, type CertificateFiles, watchCertificate } from './certificate.ts';
import { certificateOf } from './client_certificate.ts';
import { type Connection, type ConnectionLimits, Connections, type Crowding } from './connections.ts';
import { HEADER_BYTES } from './envelope.ts';
import { type FailedHandshakes, type HandshakeLimits, Handshakes } from './handshakes.ts';
import { HEAP_BYTES } from './heap.ts';
import {
  cutStream,
  type HttpRequest,
  type HttpResponse,
  headerBytes,
  isAuthority,
  linger,
  lingerStream,
  type RequestHead,
} from './http.ts';
import { Intake, type IntakeOptions } from './intake.ts';
import { OriginGuard, type Refusal } from './origin.ts';
import { type Protocols, sniff } from './protocol.ts';
import { SAFE_HEADERS } from './safe_headers.ts';
import { type SessionLimits, Sessions } from './sessions.ts';
import { Turns } from './turns.ts';
import { type UnfinishedLimits, UnfinishedMessages } from './unfinished.ts';
import { Unused } from './unused.ts';

/**
 * Handles a request. Iterating over the request returns whole messages. The handler tells the intake how many messages
 * it expects, and when it has taken one.
 */
export type HttpHandler = (request: HttpRequest, response: HttpResponse, intake: Intake) => void;

/** Serves a call on its HTTP/2 stream: the requests and responses of Node cost as much as the rest of a small call. */
export type StreamHandler = (stream: http2.ServerHttp2Stream, intake: Intake) => void;

export type ListenOptions = ListenAddress & PortOptions;

interface PortOptions {
  /** Default: no TLS. */
  readonly tls?: TlsOptions | undefined;
  readonly handler: HttpHandler;
  /** Returns what serves a call on its stream. Undefined: the call is a request for `handler`. Default: all are. */
  readonly streamHandlerOf?: (head: RequestHead) => StreamHandler | undefined;
  /** Largest message that the handlers accept. Larger envelopes are not collected. */
  readonly maxMessageBytes: number;
  /** Maximum number of streams of an HTTP/2 connection, and of requests that wait on one of HTTP/1.1. */
  readonly maxStreams: number;
  /** Called for errors of a connection or of the handler that are not reported elsewhere. */
  readonly onError: (error: unknown) => void;
  /** Default: every request is refused, without a warning. */
  readonly whenFull?: WhenFull;
  /** Host names that requests may use, in addition to those of loopback. Default: any. */
  readonly allowedHosts?: readonly string[] | undefined;
  /** Origins of web pages that may call the server. Default: only its own origin. */
  readonly allowedOrigins?: readonly string[];
  /** Returns true for what pages of other sites may link to. Default: nothing. */
  readonly isPage?: (request: RequestHead) => boolean;
  /** Returns true for what is answered without a Host, as probes of load balancers need it. Default: nothing. */
  readonly isProbe?: (request: RequestHead) => boolean;
  readonly limits?: Partial<PortLimits>;
  /** Milliseconds without a connection after which `unused` is aborted. Default: it never is. */
  readonly unusedMs?: number | undefined;
}

/** Behaviour on connections of the reserve, which are accepted while all other connections have open calls. */
interface WhenFull {
  /** Returns true for a health check, which is answered even if there is no room for more connections. */
  isHealthCheck(request: HttpRequest): boolean;
  /**
   * Answers every other request. The connection is closed afterwards. `isOfCrowd`: its address has too many, instead of
   * the port.
   */
  refuse(request: HttpRequest, response: HttpResponse, isOfCrowd: boolean): void;
  warn(crowding: Crowding): void;
}

export interface TlsOptions extends CertificateFiles {
  /** Called for the first certificate, and for each that replaces it. */
  readonly using: (certificate: CertificateFacts) => void;
  /** Called once for files that cannot replace the certificate, which stays in use. */
  readonly refused: (reason: string) => void;
  readonly failed: (handshakes: FailedHandshakes) => void;
}

export interface PortLimits extends SessionLimits, ConnectionLimits, UnfinishedLimits, HandshakeLimits {
  /**
   * Milliseconds until a new connection must have shown its protocol, after its TLS handshake. Also the limit for the
   * headers of HTTP/1.1.
   */
  readonly handshakeMs: number;
  /** Milliseconds between two looks at the files of the certificate. */
  readonly certificateMs: number;
  /** Maximum bytes of the headers of one request. */
  readonly headerBytes: number;
  /** Milliseconds that peers without calls have to disconnect when the port drains. */
  readonly hangUpMs: number;
  /** Milliseconds that a peer may continue to send a request that was already answered. */
  readonly lingerMs: number;
  /** Milliseconds that an HTTP/1.1 connection is kept between two requests. */
  readonly keepAliveMs: number;
}

const LIMITS: PortLimits = {
  handshakeMs: 10_000,
  handshakes: 64,
  handshakeTurnMs: 1_000,
  certificateMs: 5_000,
  headerBytes: 16 * 1024,
  hangUpMs: 1_000,
  lingerMs: 2_000,
  keepAliveMs: 65_000,
  pingEveryMs: 30_000,
  pingTimeoutMs: 20_000,
  idleMs: 600_000,
  maxAgeMs: undefined,
  maxConnections: 10_000,
  reserveConnections: 50,
  connectionsPerAddress: undefined,
  warnEveryMs: 60_000,
  messageMs: 30_000,
  unfinishedBytesPerConnection: 16 * 1024 * 1024,
  unfinishedBytes: 128 * 1024 * 1024,
  smallMessageBytes: SMALL_BYTES,
};

/** Messages that are decoded at once have at most this part of the heap: decoded, they can be 200 times as large. */
const DECODED_PART = 1024;

const SAFE_ENTRIES = Object.entries(SAFE_HEADERS);

/** As Node answers these errors. All others are 400. */
const UNREADABLE: Readonly<Record<string, number>> = {
  ERR_HTTP_REQUEST_TIMEOUT: 408,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  HPE_HEADER_OVERFLOW: 431,
};

const REFUSE_ALL: WhenFull = {
  isHealthCheck: () => false,
  refuse: (request, response) => refuse(request, response, { status: 503, text: 'Too many connections are open.\n' }),
  warn: ignore,
};

/** Open resources. All counts are 0 after the last client has disconnected. */
export interface PortCounts {
  readonly sockets: number;
  /** HTTP/2 connections. */
  readonly sessions: number;
  /** TLS handshakes that run or wait. */
  readonly handshakes: number;
  /** Open calls: HTTP/2 streams and HTTP/1.1 requests. */
  readonly requests: number;
  /** Bytes of partly received messages. */
  readonly unfinishedBytes: number;
  /** Large messages that wait for their slot, or are being decoded. */
  readonly slots: number;
}

/**
 * One port for HTTP/2 (gRPC) and HTTP/1.1 (curl, browsers). ALPN decides the protocol of a connection or, without TLS,
 * its first bytes. Requests reach the handler as whole messages and with a valid authority. An error of the handler
 * affects only its own request.
 */
export class Port {
  readonly #net: net.Server;
  readonly #http1: http.Server;
  readonly #http2: http2.Http2Server;
  readonly #sockets = new Set<net.Socket>();
  readonly #sessions: Sessions;
  readonly #turns: Turns;
  readonly #connections: Connections;
  readonly #handshakes: Handshakes | undefined;
  readonly #certificate: WatchedFiles | undefined;
  readonly #whenFull: WhenFull;
  readonly #origins: OriginGuard;
  readonly #intake: IntakeOptions;
  readonly #options: ListenOptions;
  readonly #unused: Unused | undefined;
  readonly #limits: PortLimits;
  /** Calls whose headers have arrived in this iteration of the event loop. */
  #begun: (() => void)[] = [];
  #requests1 = 0;
  #listening: Listening | undefined;
  #drained: Promise<void> | undefined;
  #onEmpty: (() => void) | undefined;

  constructor(options: ListenOptions) {
    this.#options = options;
    this.#unused = options.unusedMs === undefined ? undefined : new Unused(options.unusedMs);
    this.#limits = { ...LIMITS, ...options.limits };
    this.#sessions = new Sessions(this.#limits);
    this.#whenFull = options.whenFull ?? REFUSE_ALL;
    this.#connections = new Connections(this.#limits, (crowding) => this.#whenFull.warn(crowding));
    this.#turns = new Turns(options.maxStreams);
    const { tls } = options;
    const scheme = tls === undefined ? 'http' : 'https';
    this.#origins = new OriginGuard(options.allowedHosts, options.allowedOrigins ?? [], options.isPage, scheme);
    if (tls !== undefined) {
      this.#handshakes = new Handshakes(this.#limits, tls.clientCaFile !== undefined, tls.failed);
      this.#certificate = this.#watchCertificate(tls, this.#handshakes);
    }
    const { maxMessageBytes } = options;
    this.#intake = {
      maxMessageBytes,
      decodeQueue: new SlotQueue(Math.min(maxMessageBytes, HEAP_BYTES / DECODED_PART)),
      unfinished: new UnfinishedMessages(this.#limits, HEADER_BYTES + maxMessageBytes),
    };
    this.#http1 = this.#createHttp1();
    this.#http2 = this.#createHttp2();
    this.#net = net.createServer({
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: 60_000,
      pauseOnConnect: tls !== undefined,
    });
    this.#net.on('connection', (socket) => this.#accept(socket));
  }

  /** Resolves when connections are accepted. Errors: ListenError. */
  async listen(): Promise<Listening> {
    await this.#certificate?.open().catch((error: Error) => {
      throw new ListenError(`TLS is not possible: ${error.message}`, { cause: error });
    });
    try {
      this.#listening = await listenOn(this.#net, this.#options);
    } catch (error) {
      this.#certificate?.stop();
      throw error;
    }
    this.#net.on('error', this.#options.onError);
    this.#http1.emit('listening'); // starts Node's check for slow headers
    this.#unused?.count(0);
    return this.#listening;
  }

  /** Rereads the files of the certificate now. Never rejects. */
  async reload(): Promise<void> {
    await this.#certificate?.reload();
  }

  /** Aborted when no client has been connected for `unusedMs`. */
  get unused(): AbortSignal | undefined {
    return this.#unused?.signal;
  }

  counts(): PortCounts {
    return {
      sockets: this.#sockets.size,
      sessions: this.#sessions.size,
      handshakes: this.#handshakes?.size ?? 0,
      requests: this.#requests1 + this.#sessions.streams,
      unfinishedBytes: this.#intake.unfinished.bytes,
      slots: this.#intake.decodeQueue.slots,
    };
  }

  /** Accepts no more connections, waits `graceMs` for open calls, then destroys all connections. Idempotent. */
  drain(graceMs: number): Promise<void> {
    this.#drained ??= this.#drain(graceMs);
    return this.#drained;
  }

  async #drain(graceMs: number): Promise<void> {
    this.#net.close();
    this.#unused?.stop();
    this.#listening?.release();
    this.#certificate?.stop();
    const empty = new Promise<void>((resolve) => {
      this.#onEmpty = resolve;
    });
    const cut = setTimeout(() => this.#cut(), graceMs);
    // Peers without calls lose nothing, so they only get the time that a disconnect takes.
    let idleSince = performance.now();
    const check = setInterval(() => {
      if (this.counts().requests > 0) idleSince = performance.now();
      else if (performance.now() - idleSince > this.#limits.hangUpMs) this.#cut();
    }, this.#limits.hangUpMs / 4);
    this.#sessions.drain();
    this.#http1.closeIdleConnections();
    if (this.#sockets.size > 0) await empty;
    clearTimeout(cut);
    clearInterval(check);
    this.#sessions.stop();
    this.#connections.stop();
    this.#handshakes?.stop();
    this.#http1.close();
  }

  #cut(): void {
    this.#sessions.destroy();
    for (const socket of this.#sockets) socket.destroy();
  }

  #accept(socket: net.Socket): void {
    this.#sockets.add(socket);
    this.#unused?.count(this.#sockets.size);
    socket.on('error', ignore); // a reset by the peer; users of the socket get 'close'
    socket.once('close', () => {
      this.#sockets.delete(socket);
      if (this.#drained === undefined) this.#unused?.count(this.#sockets.size);
      if (this.#sockets.size === 0) this.#onEmpty?.();
    });
    if (this.#drained !== undefined) {
      socket.destroy();
      return;
    }
    const connection = this.#connections.accept(socket);
    if (connection === undefined) return;
    const giveUp = setTimeout(() => socket.destroy(), this.#limits.handshakeMs);
    socket.once('close', () => clearTimeout(giveUp));
    const protocols: Protocols = {
      http1: (carrier) => {
        clearTimeout(giveUp);
        this.#connections.carry(connection, carrier);
        this.#http1.emit('connection', carrier);
      },
      http2: (carrier) => {
        clearTimeout(giveUp);
        // The server emits `session` before emit() returns.
        this.#http2.once('session', (session) => this.#begin(session, connection));
        this.#http2.emit('connection', carrier);
      },
    };
    if (this.#handshakes === undefined) sniff(socket, protocols);
    else this.#handshakes.begin(socket, protocols);
  }

  #begin(session: http2.ServerHttp2Session, connection: Connection): void {
    session.setLocalWindowSize(4 * 1024 * 1024);
    this.#connections.carrySession(connection, session);
    this.#sessions.add(session, connection);
  }

  #watchCertificate(tls: TlsOptions, handshakes: Handshakes): WatchedFiles {
    return watchCertificate(tls, this.#limits.certificateMs, {
      use: (context, facts) => {
        // Calls on the connections of clients that other authorities have verified are not accepted any more.
        if (handshakes.use(context)) this.#sessions.leave(({ socket }) => isOutdated(socket));
        tls.using(facts);
      },
      refuse: tls.refused,
    });
  }

  #createHttp1(): http.Server {
    const server = http.createServer({
      maxHeaderSize: this.#limits.headerBytes,
      headersTimeout: this.#limits.handshakeMs,
      keepAliveTimeout: this.#limits.keepAliveMs,
      connectionsCheckingInterval: Math.min(5_000, this.#limits.handshakeMs),
      requireHostHeader: false, // the guard checks it
    });
    const handle = (request: http.IncomingMessage, response: http.ServerResponse) => {
      const connection = this.#connections.of(request.socket);
      this.#requests1 += 1;
      connection?.beginCall();
      if (this.#drained !== undefined || isOutdated(request.socket)) response.shouldKeepAlive = false;
      response.once('close', () => {
        this.#requests1 -= 1;
        connection?.endCall();
        if (this.#drained !== undefined) setImmediate(() => server.closeIdleConnections());
      });
      this.#handle(request, response, request.headers.host, connection);
    };
    const enter = (request: http.IncomingMessage, response: http.ServerResponse) =>
      this.#turns.enter(request, response, () => handle(request, response));
    server.on('request', enter);
    server.on('checkExpectation', enter); // Node's own answer would lack the headers of every response
    server.on('clientError', (error: NodeJS.ErrnoException, socket: net.Socket) => {
      if (socket.writable && this.#turns.currentOf(socket)?.headersSent !== true) {
        socket.write(unreadableAnswer(error.code));
      }
      socket.destroySoon();
    });
    return server;
  }

  #createHttp2(): http2.Http2Server {
    const server = http2.createServer({
      maxSessionMemory: 64,
      maxHeaderListPairs: 128,
      settings: {
        maxConcurrentStreams: this.#options.maxStreams,
        maxHeaderListSize: this.#limits.headerBytes,
        initialWindowSize: 256 * 1024,
      },
    });
    server.on('sessionError', ignore); // a protocol error of the peer; its session is closed and counted
    const handle = (request: http2.Http2ServerRequest, response: http2.Http2ServerResponse) => {
      const { session } = request.stream;
      this.#handle(request, response, request.authority, session && this.#connections.of(session));
    };
    // Never listens: makes requests of the streams that it is given.
    const requests = http2.createServer();
    requests.on('request', handle);
    requests.on('checkExpectation', handle);
    server.on('stream', (stream, headers, flags, rawHeaders) => {
      const isTaken = this.#takeStream(stream as http2.ServerHttp2Stream, headers, rawHeaders);
      if (!isTaken) requests.emit('stream', stream, headers, flags, rawHeaders);
    });
    return server;
  }

  /** Returns false if the stream is not a call for a handler of streams, or has to be refused. */
  #takeStream(
    stream: http2.ServerHttp2Stream,
    headers: http2.IncomingHttpHeaders,
    rawHeaders: readonly string[],
  ): boolean {
    const { session } = stream;
    const { ':method': method, ':path': url, ':authority': authority = headers.host } = headers;
    const head = { method, url, headers, rawHeaders };
    const serve = this.#options.streamHandlerOf?.(head);
    if (serve === undefined || session === undefined) return false;
    if (this.#refusalOf(head, authority) !== undefined) return false;
    const connection = this.#connections.of(session);
    if (connection !== undefined && !this.#connections.admits(connection)) return false;
    stream.on('error', ignore); // a reset by the peer; users of the stream get 'close'
    const begin = () => {
      if (!stream.closed && !stream.destroyed) this.#serveStream(stream, headers, connection ?? session, serve);
    };
    // What came with the headers has arrived then, so that most bodies are read without waiting.
    if (this.#begun.push(begin) === 1) setImmediate(() => this.#serveBegun());
    return true;
  }

  #serveBegun(): void {
    const begun = this.#begun;
    this.#begun = [];
    for (const begin of begun) begin();
  }

  #serveStream(
    stream: http2.ServerHttp2Stream,
    headers: http2.IncomingHttpHeaders,
    connection: object,
    serve: StreamHandler,
  ): void {
    const intake = new Intake(stream, headers, connection, this.#intake);
    const close = () => intake.close();
    // A reset emits 'aborted' at once, but 'close' possibly only after all input has been read.
    stream.once('aborted', close);
    stream.once('close', close);
    lingerStream(stream, intake, this.#limits.lingerMs);
    try {
      serve(stream, intake);
    } catch (error) {
      this.#options.onError(error);
      cutStream(stream, constants.NGHTTP2_INTERNAL_ERROR);
    }
  }

  #handle(
    request: HttpRequest,
    response: HttpResponse,
    authority: string | undefined,
    connection: Connection | undefined,
  ): void {
    const intake = new Intake(request, request.headers, connection ?? connectionOf(request), this.#intake);
    Object.defineProperty(request, Symbol.asyncIterator, { value: () => intake.messages() });
    closeWhenGone(intake, request, response);
    linger(request, response, intake, this.#limits.lingerMs);
    for (const [name, value] of SAFE_ENTRIES) response.setHeader(name, value);
    const refusal = this.#refusalOf(request, authority);
    if (refusal !== undefined) {
      refuse(request, response, refusal);
      return;
    }
    if (this.#origins.applyCors(request, response)) return;
    if (connection !== undefined && !this.#connections.admits(connection)) {
      connection.closeGracefully(this.#limits.lingerMs);
      if (!('stream' in response)) response.shouldKeepAlive = false;
      if (!this.#whenFull.isHealthCheck(request)) {
        this.#connections.refuse(connection);
        this.#whenFull.refuse(request, response, this.#connections.isOfCrowd(connection));
        return;
      }
    }
    try {
      this.#options.handler(request, response, intake);
    } catch (error) {
      this.#options.onError(error);
      refuse(request, response, { status: 500, text: 'The request could not be handled.\n' });
    }
  }

  /** Returns the refusal of a request by the guards, or undefined if it may be served. */
  #refusalOf(request: RequestHead, authority: string | undefined): Refusal | undefined {
    const isMissing = authority === undefined || authority === '';
    if (!isAuthority(authority) && !(isMissing && this.#options.isProbe?.(request) === true)) {
      return { status: 400, text: 'The :authority (Host) of the request must be HOST or HOST:PORT.\n' };
    }
    const { headerBytes: most } = this.#limits;
    if (headerBytes(request.rawHeaders) > most) {
      return { status: 431, text: `The headers of a request must have at most ${most} bytes.\n` };
    }
    return this.#origins.refusalOf(request, authority);
  }
}

/** Answers bytes that are not an HTTP request. No handler receives them. */
function unreadableAnswer(code: string | undefined): string {
  const status = UNREADABLE[code ?? ''] ?? 400;
  const headers = [...SAFE_ENTRIES, ['connection', 'close']].map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} ${http.STATUS_CODES[status]}\r\n${headers.join('')}\r\n`;
}

/** Whether the client has shown a certificate to authorities that were replaced. */
function isOutdated(socket: net.Socket): boolean {
  return certificateOf(socket)?.authorities.replaced === true;
}

function connectionOf(request: HttpRequest): object {
  return 'stream' in request ? (request.stream.session ?? request.stream) : request.socket;
}

/**
 * HTTP/2: a reset emits 'aborted' at once, but 'close' possibly only after all input has been read. HTTP/1.1: 'aborted'
 * is emitted only for a request that was not read to its end, and 'close' on its response whenever the connection ends.
 */
function closeWhenGone(intake: Intake, request: HttpRequest, response: HttpResponse): void {
  const close = () => intake.close();
  request.once('aborted', close);
  response.once('close', close);
  if ('stream' in request && request.stream.closed) close();
}

function refuse(request: HttpRequest, response: HttpResponse, { status, text }: Refusal): void {
  if (response.headersSent) {
    if ('stream' in request) cutStream(request.stream, constants.NGHTTP2_INTERNAL_ERROR);
    else request.destroy();
    return;
  }
  response.statusCode = status;
  response.setHeader('content-type', 'text/plain; charset=utf-8');
  response.end(text);
}

function ignore(): void {}
