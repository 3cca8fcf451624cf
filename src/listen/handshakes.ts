import type net from 'node:net';
import tls from 'node:tls';
import { InTurn, type Waiting } from '../queue/in_turn.ts';
import { noteCertificate } from './client_certificate.ts';
import type { Protocols } from './protocol.ts';
import { Throttle } from './throttle.ts';

export interface HandshakeLimits {
  /** Maximum number of TLS handshakes at once. Further connections wait, without being read. */
  readonly handshakes: number;
  /** Milliseconds after which a handshake gives its place to a connection that waits, and ends. */
  readonly handshakeTurnMs: number;
  /** Minimum time between two reports about failed handshakes, in milliseconds. */
  readonly warnEveryMs: number;
}

/** Handshakes that failed since the last report. Connections that sent nothing do not count. */
export interface FailedHandshakes {
  readonly failed: number;
  /** Why the last one failed: a code of Node or OpenSSL, or INCOMPLETE if the connection ended before. */
  readonly reason: string;
}

interface Visit {
  readonly socket: net.Socket;
  readonly protocols: Protocols;
  readonly ends: string;
  /** Of the certificate of the client, when the handshake began. */
  authorities: { readonly replaced: boolean };
  /** Undefined: it does not wait. */
  waiting: Waiting<Visit> | undefined;
  begunAt: number;
  reason: string | undefined;
}

/**
 * The TLS handshakes of a port. ALPN decides the protocol; without it, the protocol is HTTP/1.1. A handshake that fails
 * or hangs ends its own connection only: it takes the place of others for `handshakeTurnMs` at most. Addresses are
 * served in turn, and the newest connection of each first, because those that have waited longest may have left.
 */
export class Handshakes {
  readonly #limits: HandshakeLimits;
  readonly #server: tls.Server;
  /** The oldest first. */
  readonly #running = new Map<string, Visit>();
  readonly #waiting = new InTurn<Visit>();
  readonly #reports: Throttle;
  /** Of client certificates. `#ca` tells them apart. */
  #authorities = { replaced: false };
  #ca: Buffer | undefined;
  #turn: NodeJS.Timeout | undefined;
  #failed = 0;
  #reason = '';

  /** `asksClients`: for a certificate. What it proves is decided for each call, which may show another credential. */
  constructor(limits: HandshakeLimits, asksClients: boolean, report: (failed: FailedHandshakes) => void) {
    this.#limits = limits;
    const asked = { requestCert: asksClients, rejectUnauthorized: false };
    this.#server = tls.createServer({ ALPNProtocols: ['h2', 'http/1.1'], ...asked });
    this.#reports = new Throttle(limits.warnEveryMs, () => {
      report({ failed: this.#failed, reason: this.#reason });
      this.#failed = 0;
    });
    this.#server.on('secureConnection', (secure) => this.#complete(secure));
    this.#server.on('tlsClientError', ({ code }: NodeJS.ErrnoException, secure) => {
      const visit = this.#running.get(endsOf(secure));
      if (visit !== undefined) visit.reason = code;
    });
  }

  /** Handshakes that run or wait. */
  get size(): number {
    return this.#running.size + this.#waiting.size;
  }

  /**
   * Handshakes that begin from now on use this certificate. Established connections keep theirs. Returns true if the
   * authorities of client certificates are others than before.
   */
  use(context: tls.SecureContextOptions & { readonly ca: Buffer | undefined }): boolean {
    this.#server.setSecureContext(context);
    const isSame = this.#ca === undefined || context.ca === undefined || this.#ca.equals(context.ca);
    this.#ca = context.ca;
    if (isSame) return false;
    this.#authorities.replaced = true;
    this.#authorities = { replaced: false };
    return true;
  }

  /** The socket must be paused. */
  begin(socket: net.Socket, protocols: Protocols): void {
    const visit: Visit = {
      socket,
      protocols,
      ends: endsOf(socket),
      waiting: undefined,
      authorities: this.#authorities,
      begunAt: 0,
      reason: undefined,
    };
    socket.once('close', () => this.#leave(visit));
    visit.waiting = this.#waiting.addFirst(socket.remoteAddress ?? '', visit);
    this.#admit();
  }

  /** Sends the last report, if one is due. */
  stop(): void {
    this.#reports.stop();
  }

  #admit(): void {
    while (this.#running.size < this.#limits.handshakes) {
      const next = this.#waiting.next();
      if (next === undefined) break;
      this.#waiting.serve(next);
      const { item: visit } = next;
      visit.waiting = undefined;
      visit.begunAt = performance.now();
      visit.authorities = this.#authorities;
      this.#running.set(visit.ends, visit);
      this.#server.emit('connection', visit.socket);
    }
    clearTimeout(this.#turn);
    const [oldest] = this.#running.values();
    if (this.#waiting.size === 0 || oldest === undefined) return;
    const turnMs = oldest.begunAt + this.#limits.handshakeTurnMs - performance.now();
    this.#turn = setTimeout(() => this.#end(oldest), Math.max(0, turnMs));
  }

  /** What has arrived is read before, because the process may have been busy. */
  #end(visit: Visit): void {
    setImmediate(() => {
      if (this.#running.get(visit.ends) === visit) visit.socket.destroy();
    });
  }

  #complete(secure: tls.TLSSocket): void {
    const visit = this.#running.get(endsOf(secure));
    // The connection was closed while the handshake was completed.
    if (visit === undefined) {
      secure.destroy();
      return;
    }
    this.#running.delete(visit.ends);
    noteCertificate(secure, visit.authorities);
    if (secure.alpnProtocol === 'h2') visit.protocols.http2(secure);
    else visit.protocols.http1(secure);
    this.#admit();
  }

  #leave(visit: Visit): void {
    if (this.#running.get(visit.ends) === visit) {
      this.#running.delete(visit.ends);
      if (visit.socket.bytesRead > 0) this.#fail(visit.reason ?? 'INCOMPLETE');
    } else if (visit.waiting === undefined || !this.#waiting.delete(visit.waiting)) return;
    this.#admit();
  }

  #fail(reason: string): void {
    this.#failed += 1;
    this.#reason = reason;
    this.#reports.note();
  }
}

/** Identifies an open connection. Node's TLS server does not say which socket a decrypted one belongs to. */
function endsOf({ remoteAddress, remotePort, localAddress }: net.Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress}`;
}
