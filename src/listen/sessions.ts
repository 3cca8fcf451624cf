import { constants, type ServerHttp2Session } from 'node:http2';
import type { Connection } from './connections.ts';

export interface SessionLimits {
  /**
   * Milliseconds between pings. A connection that does not answer in time is destroyed, so that lost peers are not kept
   * forever.
   */
  readonly pingEveryMs: number;
  readonly pingTimeoutMs: number;
  /** Milliseconds without calls after which a connection gets a GOAWAY. Clients reconnect when they need one. */
  readonly idleMs: number;
  /**
   * Age in milliseconds at which a connection gets a GOAWAY; its calls may finish. Lets a load balancer spread clients.
   * Undefined: never.
   */
  readonly maxAgeMs: number | undefined;
}

interface Tracked {
  readonly session: ServerHttp2Session;
  readonly bornAt: number;
  streams: number;
  idleSince: number;
  /** Time of the newest ping, and whether its answer is due. */
  pingedAt: number;
  pingOut: boolean;
  leaving: boolean;
}

/** The HTTP/2 connections of a port: counts them, pings them and asks them to close. */
export class Sessions {
  readonly #limits: SessionLimits;
  readonly #all = new Set<Tracked>();
  readonly #watch: NodeJS.Timeout;
  #draining = false;
  #streams = 0;

  constructor(limits: SessionLimits) {
    this.#limits = limits;
    const shortest = Math.min(limits.pingEveryMs, limits.pingTimeoutMs, limits.idleMs, limits.maxAgeMs ?? Infinity);
    this.#watch = setInterval(() => this.#check(performance.now()), shortest / 4);
    this.#watch.unref();
  }

  get size(): number {
    return this.#all.size;
  }

  get streams(): number {
    return this.#streams;
  }

  add(session: ServerHttp2Session, connection: Connection): void {
    const now = performance.now();
    const tracked: Tracked = {
      session,
      bornAt: now,
      streams: 0,
      idleSince: now,
      pingedAt: now,
      pingOut: false,
      leaving: false,
    };
    this.#all.add(tracked);
    session.on('stream', (stream) => {
      tracked.streams += 1;
      this.#streams += 1;
      connection.beginCall();
      stream.once('close', () => {
        tracked.streams -= 1;
        this.#streams -= 1;
        connection.endCall();
        if (tracked.streams > 0) return;
        tracked.idleSince = performance.now();
        if (tracked.leaving && !session.destroyed) session.close();
      });
    });
    session.once('close', () => this.#all.delete(tracked));
    if (this.#draining) goAway(tracked);
  }

  /** Asks every peer to close its connection. Open calls may finish. */
  drain(): void {
    this.#draining = true;
    for (const tracked of this.#all) goAway(tracked);
  }

  /** Asks those peers to close their connection. Open calls may finish. */
  leave(isMeant: (session: ServerHttp2Session) => boolean): void {
    for (const tracked of this.#all) if (!tracked.session.destroyed && isMeant(tracked.session)) goAway(tracked);
  }

  destroy(): void {
    for (const { session } of this.#all) session.destroy();
  }

  stop(): void {
    clearInterval(this.#watch);
  }

  #check(now: number): void {
    const { pingEveryMs, pingTimeoutMs, idleMs, maxAgeMs = Infinity } = this.#limits;
    for (const tracked of this.#all) {
      // Node emits `close` later.
      if (tracked.session.destroyed) continue;
      if (tracked.pingOut && now - tracked.pingedAt > pingTimeoutMs) tracked.session.destroy();
      else if (tracked.streams === 0 && now - tracked.idleSince > idleMs) goAway(tracked);
      else if (now - tracked.bornAt > maxAgeMs) goAway(tracked);
      else if (!tracked.pingOut && now - tracked.pingedAt > pingEveryMs) ping(tracked, now);
    }
  }
}

function ping(tracked: Tracked, now: number): void {
  tracked.pingedAt = now;
  tracked.pingOut = tracked.session.ping(() => {
    tracked.pingOut = false;
  });
}

/**
 * Sends GOAWAY in two steps. The first one refuses nothing, so that calls in flight are still served. The final one
 * follows when the peer has seen the first, which its answer to a ping shows. The session closes after its last stream.
 * Without an open stream there is only one step, because the library reads nothing more of such a session after a
 * GOAWAY and would never see the answer.
 */
function goAway(tracked: Tracked): void {
  const { session } = tracked;
  if (tracked.leaving || session.closed || session.destroyed) return;
  tracked.leaving = true;
  if (tracked.streams === 0) {
    session.close();
    return;
  }
  session.goaway(constants.NGHTTP2_NO_ERROR, 2 ** 31 - 1);
  tracked.pingedAt = performance.now();
  tracked.pingOut = session.ping(() => {
    tracked.pingOut = false;
    if (!session.destroyed) session.close();
  });
  if (!tracked.pingOut) session.close();
}
