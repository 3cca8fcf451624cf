import type { ServerHttp2Session } from 'node:http2';
import { constants } from 'node:http2';
import type { Connection } from './connections.ts';

export interface SessionLimits {
  /** Every connection is pinged so often, and cut when it does not answer in time: else peers that vanished are held for good. */
  readonly pingEveryMs: number;
  readonly pingTimeoutMs: number;
  /** A connection without calls for so long is told to go; clients come back when they need one. */
  readonly idleMs: number;
  /** A connection of this age is told to go, its calls may end: lets a balancer spread clients. Undefined: never. */
  readonly maxAgeMs: number | undefined;
}

interface Tracked {
  readonly session: ServerHttp2Session;
  readonly bornAt: number;
  streams: number;
  idleSince: number;
  /** When the newest ping went out, and whether its answer is still due. */
  pingedAt: number;
  pingOut: boolean;
  leaving: boolean;
}

/** The HTTP/2 connections of a port: counted, pinged, and let go. */
export class Sessions {
  readonly #limits: SessionLimits;
  readonly #all = new Set<Tracked>();
  readonly #watch: NodeJS.Timeout;
  #draining = false;
  #streams = 0;

  constructor(limits: SessionLimits) {
    this.#limits = limits;
    const shortest = Math.min(limits.pingEveryMs, limits.pingTimeoutMs, limits.idleMs, limits.maxAgeMs ?? Infinity);
    this.#watch = setInterval(() => this.#look(performance.now()), shortest / 4);
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
    if (this.#draining) letGo(tracked);
  }

  /** Tells every peer to go elsewhere; calls under way may end. */
  drain(): void {
    this.#draining = true;
    for (const tracked of this.#all) letGo(tracked);
  }

  destroy(): void {
    for (const { session } of this.#all) session.destroy();
  }

  stop(): void {
    clearInterval(this.#watch);
  }

  #look(now: number): void {
    const { pingEveryMs, pingTimeoutMs, idleMs, maxAgeMs = Infinity } = this.#limits;
    for (const tracked of this.#all) {
      if (tracked.pingOut && now - tracked.pingedAt > pingTimeoutMs) tracked.session.destroy();
      else if (tracked.streams === 0 && now - tracked.idleSince > idleMs) letGo(tracked);
      else if (now - tracked.bornAt > maxAgeMs) letGo(tracked);
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
 * GOAWAY in two steps: first one that refuses nothing, so that calls already on their way are still served, and the final one when the peer
 * has seen the first (its answer to a ping tells). The session closes after its last stream. Without a stream under way there is one step only: the
 * library reads nothing more of such a session once a GOAWAY is sent, so the answer would never be seen.
 */
function letGo(tracked: Tracked): void {
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
