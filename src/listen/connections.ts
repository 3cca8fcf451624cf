import type { Http2Session } from 'node:http2';
import type net from 'node:net';
import { Throttle } from './throttle.ts';

export interface ConnectionLimits {
  /** Maximum number of connections. At the bound, each new connection closes the one that has been idle longest. */
  readonly maxConnections: number;
  /**
   * Connections beyond the bound, accepted while all others have open calls. They may only make health checks. If the
   * reserve is full too, each new connection closes an older one of the reserve: the one that has been idle longest, or
   * the oldest if none is idle.
   */
  readonly reserveConnections: number;
  /** Minimum time between two warnings about closed and refused connections, in milliseconds. */
  readonly warnEveryMs: number;
}

/** Connections that the bound has closed or refused since the last warning. */
export interface Crowding {
  /** Closed because they had been idle longest. */
  readonly closedIdle: number;
  /** Refused, or closed to make room in the reserve, because every connection had open calls. */
  readonly refused: number;
}

/** The connections of a port, bounded so that connections without calls never block others. */
export class Connections {
  readonly #regular: Slots;
  readonly #reserve: Slots;
  readonly #warnings: Throttle;
  readonly #byCarrier = new WeakMap<net.Socket | Http2Session, Connection>();
  #closedIdle = 0;
  #refused = 0;

  constructor(limits: ConnectionLimits, warn: (crowding: Crowding) => void) {
    this.#warnings = new Throttle(limits.warnEveryMs, () => {
      warn({ closedIdle: this.#closedIdle, refused: this.#refused });
      this.#closedIdle = 0;
      this.#refused = 0;
    });
    this.#regular = new Slots(limits.maxConnections);
    this.#reserve = new Slots(limits.reserveConnections);
  }

  /** Returns undefined and destroys the socket if there is no room and the port has no reserve. */
  accept(socket: net.Socket): Connection | undefined {
    const slots = this.#makeRoom(this.#regular) ? this.#regular : this.#reserve;
    if (slots === this.#reserve && !this.#makeRoom(slots)) {
      const oldest = slots.oldest();
      if (oldest === undefined) {
        socket.destroy();
        this.#refused += 1;
        this.#warnings.note();
        return undefined;
      }
      // Open calls of the reserve must not block the next health check.
      this.refuse(oldest);
      oldest.close();
    }
    const connection = new Connection(socket, slots);
    this.#byCarrier.set(socket, connection);
    return connection;
  }

  /** Records the socket of a connection within TLS. */
  carry(connection: Connection, socket: net.Socket): void {
    this.#byCarrier.set(socket, connection);
  }

  /** Records that a connection uses HTTP/2. */
  carrySession(connection: Connection, session: Http2Session): void {
    connection.session = session;
    this.#byCarrier.set(session, connection);
  }

  of(carrier: net.Socket | Http2Session): Connection | undefined {
    return this.#byCarrier.get(carrier);
  }

  /**
   * Returns whether the connection may make any call. A connection of the reserve may, as soon as there is room within
   * the bound.
   */
  admits(connection: Connection): boolean {
    if (connection.slots !== this.#reserve) return true;
    if (!this.#makeRoom(this.#regular)) return false;
    connection.moveTo(this.#regular);
    return true;
  }

  /** Counts a connection as refused, once. */
  refuse(connection: Connection): void {
    if (connection.refused) return;
    connection.refused = true;
    this.#refused += 1;
    this.#warnings.note();
  }

  /** Sends the last warning, if one is due. */
  stop(): void {
    this.#warnings.stop();
  }

  #makeRoom(slots: Slots): boolean {
    if (slots.connections.size < slots.size) return true;
    const idle = slots.idle.takeFirst();
    if (idle === undefined) return false;
    idle.close();
    this.#closedIdle += 1;
    this.#warnings.note();
    return true;
  }
}

/** One connection, from its acceptance until its file handle is closed. */
export class Connection {
  readonly #socket: net.Socket;
  /** Set if the connection uses HTTP/2. */
  session: Http2Session | undefined;
  slots: Slots | undefined;
  refused = false;
  #calls = 0;
  #graceMs: number | undefined;
  #cut: NodeJS.Timeout | undefined;

  /** A connection without traffic has been idle since it was accepted. */
  constructor(socket: net.Socket, slots: Slots) {
    this.#socket = socket;
    this.moveTo(slots);
    socket.once('close', () => {
      clearTimeout(this.#cut);
      this.#leave();
    });
  }

  moveTo(slots: Slots): void {
    this.#leave();
    this.slots = slots;
    slots.connections.add(this);
    if (this.#calls === 0) slots.idle.add(this);
  }

  beginCall(): void {
    this.#calls += 1;
    if (this.#calls === 1) this.slots?.idle.delete(this);
  }

  endCall(): void {
    this.#calls -= 1;
    if (this.#calls > 0) return;
    this.slots?.idle.add(this);
    if (this.#graceMs !== undefined) this.#cut = setTimeout(() => this.close(), this.#graceMs).unref();
  }

  /**
   * Asks an HTTP/2 peer to make no more calls. The peer closes the connection after it has read its answers; if the
   * server closed it, many clients would lose them. A connection that is still open `graceMs` after its last call is
   * destroyed.
   */
  closeGracefully(graceMs: number): void {
    if (this.#graceMs !== undefined) return;
    this.#graceMs = graceMs;
    this.session?.goaway();
  }

  /** Closes the file handle at once. For HTTP/2, destroying the session sends a GOAWAY first. */
  close(): void {
    this.#leave();
    this.session?.destroy();
    this.#socket.destroy();
  }

  #leave(): void {
    if (this.slots === undefined) return;
    this.slots.connections.delete(this);
    this.slots.idle.delete(this);
    this.slots = undefined;
  }
}

class Slots {
  readonly size: number;
  /** In the order in which they were added. */
  readonly connections = new Set<Connection>();
  readonly idle = new IdleQueue();

  constructor(size: number) {
    this.size = size;
  }

  oldest(): Connection | undefined {
    return this.connections.values().next().value;
  }
}

/**
 * Connections without calls, the longest idle first. A set keeps this order. The iterator is kept, because a new
 * iterator would skip all deleted entries at the beginning of the set again.
 */
class IdleQueue {
  readonly #connections = new Set<Connection>();
  #walk = this.#connections.values();

  add(connection: Connection): void {
    this.#connections.add(connection);
  }

  delete(connection: Connection): void {
    this.#connections.delete(connection);
  }

  takeFirst(): Connection | undefined {
    let first = this.#walk.next();
    if (first.done) {
      // An iterator that has reached the end does not return entries that are added later.
      this.#walk = this.#connections.values();
      first = this.#walk.next();
    }
    if (first.value !== undefined) this.#connections.delete(first.value);
    return first.value;
  }
}
