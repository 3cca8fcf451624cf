import type { Socket } from 'node:net';

export type Direction = 'toServer' | 'toClient';

/** The current network conditions, for all connections of a proxy. */
export interface Weather {
  latency: number;
  /** Directions in which nothing is delivered. */
  stopped: ReadonlySet<Direction>;
  readonly delivered: Record<Direction, number>;
  /** An action after `left` more bytes in a direction, over all connections. */
  limit?: { readonly direction: Direction; left: number; readonly then: () => void };
}

/** Bytes that a source may send before it is paused. */
const ROOM = 4 * 1024 * 1024;

/** Breaks a connection. A Unix socket cannot be reset. */
export function breakOff(socket: Socket): void {
  if (socket.remoteAddress === undefined) socket.destroy();
  else socket.resetAndDestroy();
}

/** One direction of one connection: chunks in order, each delivered when it is due and the conditions allow. */
export class Lane {
  readonly direction: Direction;
  readonly #to: Socket;
  readonly #from: Socket;
  readonly #weather: Weather;
  #queue: { readonly due: number; readonly chunk: Buffer | 'end' }[] = [];
  #queued = 0;
  #timer: NodeJS.Timeout | undefined;
  /** The server's side broke while nothing was delivered to the client. */
  #brokeUnseen = false;

  constructor(from: Socket, to: Socket, direction: Direction, weather: Weather) {
    this.#from = from;
    this.#to = to;
    this.direction = direction;
    this.#weather = weather;
    from.on('data', (chunk: Buffer) => this.#add(chunk));
    from.on('end', () => this.#add('end'));
    from.on('error', () => undefined); // 'close' follows, and reports it
    to.on('drain', () => this.#pass());
  }

  /** Bytes that are queued. */
  get queued(): number {
    return this.#queued;
  }

  /**
   * A connection that breaks is broken on the other side too. One that is blocked reports nothing until its release. A
   * server then only gets the late bytes: a reset could overtake them.
   */
  sourceClosed(failed: boolean): void {
    if (!failed) return;
    if (!this.#weather.stopped.has(this.direction)) breakOff(this.#to);
    else this.#brokeUnseen = this.direction === 'toClient';
  }

  /**
   * Delivers all queued bytes at once, due or not, and then that the connection broke; resolves when the system has
   * accepted them.
   */
  async flush(): Promise<void> {
    clearTimeout(this.#timer);
    while (this.#queue.length > 0 && !this.#to.destroyed) this.#next();
    if (this.#to.writable) await new Promise((resolve) => this.#to.write('', resolve));
    if (this.#brokeUnseen) breakOff(this.#to);
    this.#pass();
  }

  #add(chunk: Buffer | 'end'): void {
    this.#queue.push({ due: performance.now() + this.#weather.latency, chunk });
    this.#queued += chunk === 'end' ? 0 : chunk.length;
    if (this.#queued > ROOM) this.#from.pause();
    this.#pass();
  }

  #pass(): void {
    clearTimeout(this.#timer);
    while (!this.#weather.stopped.has(this.direction) && !this.#to.destroyed && !this.#to.writableNeedDrain) {
      const head = this.#queue[0];
      if (head === undefined) break;
      const early = head.due - performance.now();
      if (early > 0) {
        this.#timer = setTimeout(() => this.#pass(), early);
        return;
      }
      this.#next();
    }
    if (this.#queued <= ROOM && !this.#from.destroyed) this.#from.resume();
  }

  #next(): void {
    const chunk = this.#queue.shift()?.chunk;
    if (chunk === 'end') this.#to.end();
    else if (chunk !== undefined) this.#deliver(chunk);
  }

  #deliver(chunk: Buffer): void {
    this.#queued -= chunk.length;
    const limit = this.#weather.limit;
    const counts = limit?.direction === this.direction ? limit : undefined;
    const part = counts && counts.left < chunk.length ? chunk.subarray(0, counts.left) : chunk;
    this.#weather.delivered[this.direction] += part.length;
    if (counts) counts.left -= part.length;
    if (counts?.left !== 0) this.#to.write(part);
    // The last allowed bytes leave before the connection is reset.
    else this.#to.write(part, () => counts.then());
  }
}
