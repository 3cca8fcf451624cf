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
  /**
   * Maximum number of connections of one address that have not shown a valid credential, with the same behaviour at the
   * bound. Undefined: no bound, because there are no credentials.
   */
  readonly connectionsPerAddress?: number | undefined;
  /** Minimum time between two warnings about closed and refused connections, in milliseconds. */
  readonly warnEveryMs: number;
}

/** Connections that the bound has closed or refused since the last warning. */
export interface Crowding {
  /** Closed because they had been idle longest. */
  readonly closedIdle: number;
  /** Refused, or closed to make room in the reserve, because every connection had open calls. */
  readonly refused: number;
  /** Of both, those without a valid credential of which one address had too many. */
  readonly ofAddresses: number;
}

/** Connections beyond the bound of their address, which are told so. */
const RESERVE_PER_ADDRESS = 8;

/** The connections of a port, bounded so that connections without calls never block others. */
export class Connections {
  readonly #all: Room;
  readonly #perAddress: number | undefined;
  /** Of the connections that have not shown a valid credential, by address. */
  readonly #strangers = new Map<string, Room>();
  readonly #warnings: Throttle;
  readonly #byCarrier = new WeakMap<net.Socket | Http2Session, Connection>();
  #closedIdle = 0;
  #refused = 0;
  #ofAddresses = 0;

  constructor(limits: ConnectionLimits, warn: (crowding: Crowding) => void) {
    this.#warnings = new Throttle(limits.warnEveryMs, () => {
      warn({ closedIdle: this.#closedIdle, refused: this.#refused, ofAddresses: this.#ofAddresses });
      this.#closedIdle = 0;
      this.#refused = 0;
      this.#ofAddresses = 0;
    });
    this.#all = new Room(limits.maxConnections, limits.reserveConnections);
    this.#perAddress = limits.connectionsPerAddress;
  }

  /** Returns undefined and destroys the socket if there is no room and the port has no reserve. */
  accept(socket: net.Socket): Connection | undefined {
    // First, so that a crowded address loses its own connections.
    const ofAddress = this.#slotsOfAddress(socket);
    const slots = this.#slotsIn(this.#all);
    if (slots === undefined) {
      socket.destroy();
      this.#refused += 1;
      this.#warnings.note();
      return undefined;
    }
    const connection = new Connection(socket, slots, ofAddress);
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
   * Returns whether the connection may make any call. A connection of a reserve may, as soon as there is room within
   * the bound.
   */
  admits(connection: Connection): boolean {
    for (const slots of connection.slots) {
      const { regular, reserve } = slots.room;
      if (slots !== reserve) continue;
      if (!this.#makeRoom(regular)) return false;
      connection.leave(slots);
      connection.enter(regular);
    }
    return true;
  }

  /** Whether its address has too many connections, instead of the port. */
  isOfCrowd({ slots }: Connection): boolean {
    return slots.some(({ room }) => room !== this.#all && slots.includes(room.reserve));
  }

  /** Counts a connection as refused, once. */
  refuse(connection: Connection): void {
    if (connection.refused) return;
    connection.refused = true;
    this.#refused += 1;
    if (this.isOfCrowd(connection)) this.#ofAddresses += 1;
    this.#warnings.note();
  }

  /** Sends the last warning, if one is due. */
  stop(): void {
    this.#warnings.stop();
  }

  #slotsOfAddress(socket: net.Socket): Slots | undefined {
    const { remoteAddress: address } = socket;
    // The callers of a Unix socket have no address.
    if (this.#perAddress === undefined || address === undefined) return undefined;
    const room = this.#strangers.get(address) ?? new Room(this.#perAddress, RESERVE_PER_ADDRESS);
    this.#strangers.set(address, room);
    socket.once('close', () => {
      if (room.isEmpty && this.#strangers.get(address) === room) this.#strangers.delete(address);
    });
    return this.#slotsIn(room);
  }

  /** Returns slots with room for one more connection, which may be those of the reserve. */
  #slotsIn({ regular, reserve }: Room): Slots | undefined {
    if (this.#makeRoom(regular)) return regular;
    if (this.#makeRoom(reserve)) return reserve;
    const oldest = reserve.oldest();
    if (oldest === undefined) return undefined;
    // Open calls of the reserve must not block the next health check.
    this.refuse(oldest);
    oldest.close();
    return reserve;
  }

  #makeRoom(slots: Slots): boolean {
    if (slots.connections.size < slots.size) return true;
    const idle = slots.idle.takeFirst();
    if (idle === undefined) return false;
    idle.close();
    this.#closedIdle += 1;
    if (slots.room !== this.#all) this.#ofAddresses += 1;
    this.#warnings.note();
    return true;
  }
}

/** One connection, from its acceptance until its file handle is closed. */
export class Connection {
  readonly #socket: net.Socket;
  /** Set if the connection uses HTTP/2. */
  session: Http2Session | undefined;
  /** Those of the port and, until it shows a valid credential, those of its address. */
  slots: readonly Slots[] = [];
  refused = false;
  readonly #ofPort: Room;
  #calls = 0;
  #graceMs: number | undefined;
  #cut: NodeJS.Timeout | undefined;

  /** A connection without traffic has been idle since it was accepted. */
  constructor(socket: net.Socket, slots: Slots, ofAddress?: Slots) {
    this.#socket = socket;
    this.#ofPort = slots.room;
    this.enter(slots);
    if (ofAddress !== undefined) this.enter(ofAddress);
    socket.once('close', () => {
      clearTimeout(this.#cut);
      this.#leaveAll();
    });
  }

  enter(slots: Slots): void {
    this.slots = [...this.slots, slots];
    slots.connections.add(this);
    if (this.#calls === 0) slots.idle.add(this);
  }

  leave(slots: Slots): void {
    this.slots = this.slots.filter((other) => other !== slots);
    slots.remove(this);
  }

  /** From now on, the connection does not count for its address. */
  becomeKnown(): void {
    if (this.slots.length < 2) return;
    for (const slots of this.slots) if (slots.room !== this.#ofPort) this.leave(slots);
  }

  beginCall(): void {
    this.#calls += 1;
    if (this.#calls === 1) for (const { idle } of this.slots) idle.delete(this);
  }

  endCall(): void {
    this.#calls -= 1;
    if (this.#calls > 0) return;
    for (const { idle } of this.slots) idle.add(this);
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
    this.#leaveAll();
    this.session?.destroy();
    this.#socket.destroy();
  }

  #leaveAll(): void {
    for (const slots of this.slots) this.leave(slots);
  }
}

/** Room for connections within a bound, and for some more while all others have calls. */
class Room {
  readonly regular: Slots;
  readonly reserve: Slots;

  constructor(size: number, reserve: number) {
    this.regular = new Slots(this, size);
    this.reserve = new Slots(this, reserve);
  }

  get isEmpty(): boolean {
    return this.regular.connections.size + this.reserve.connections.size === 0;
  }
}

class Slots {
  readonly room: Room;
  readonly size: number;
  /** In the order in which they were added. */
  readonly connections = new Set<Connection>();
  readonly idle = new IdleQueue();

  constructor(room: Room, size: number) {
    this.room = room;
    this.size = size;
  }

  oldest(): Connection | undefined {
    return this.connections.values().next().value;
  }

  remove(connection: Connection): void {
    this.connections.delete(connection);
    this.idle.delete(connection);
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
