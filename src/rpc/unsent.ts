import type { Http2Session, ServerHttp2Stream } from 'node:http2';
import { LIMITS } from '../domain/limits.ts';
import type { HttpResponse } from './http.ts';

const LARGE_BYTES = 128 * 1024;

/** Smaller messages need not wait: one for each stream of a connection needs little memory. */
export function isLarge(message: Uint8Array): boolean {
  return message.length > LARGE_BYTES;
}

/**
 * Bounds the bytes of large messages that each HTTP/2 connection has been given and has not sent, because its client
 * does not read. Without the bound, such messages could fill the memory that Node allows a session, and Node resets
 * every new stream of a full session.
 */
export class UnsentMessages {
  readonly #connections = new WeakMap<Http2Session, Room>();

  /**
   * Waits until there is room for a large message. The returned function gives the room back. So does the end of the
   * stream.
   */
  async enter(stream: ServerHttp2Stream, bytes: number): Promise<() => void> {
    const { session } = stream;
    if (session === undefined || stream.closed) return nothing;
    const room = this.#roomOf(session);
    const place = room.queue(bytes);
    const leave = () => room.leave(place);
    stream.once('close', leave);
    await place.entered;
    return () => {
      stream.off('close', leave);
      leave();
    };
  }

  /**
   * Delays the large chunks of an answer until there is room. The reader asks for the next chunk once it has sent the
   * last one.
   */
  async *paced(chunks: AsyncIterable<Uint8Array>, response: HttpResponse): AsyncIterableIterator<Uint8Array> {
    if (!('stream' in response)) return yield* chunks;
    for await (const chunk of chunks) {
      if (!isLarge(chunk)) {
        yield chunk;
        continue;
      }
      const leave = await this.enter(response.stream, chunk.length);
      try {
        yield chunk;
      } finally {
        leave();
      }
    }
  }

  #roomOf(session: Http2Session): Room {
    let room = this.#connections.get(session);
    if (room === undefined) {
      room = new Room(LIMITS.unsentBytesPerConnection);
      this.#connections.set(session, room);
    }
    return room;
  }
}

interface Place {
  readonly bytes: number;
  readonly entered: Promise<void>;
  readonly enter: () => void;
}

/** Admits messages in order of arrival while they fit. One that is larger than the room is admitted alone. */
class Room {
  readonly #size: number;
  readonly #waiting = new Set<Place>();
  readonly #inside = new Set<Place>();
  #bytes = 0;

  constructor(size: number) {
    this.#size = size;
  }

  queue(bytes: number): Place {
    const { promise: entered, resolve: enter } = Promise.withResolvers<void>();
    const place = { bytes, entered, enter };
    this.#waiting.add(place);
    this.#admit();
    return place;
  }

  /** Leaves the room, or the queue before it. */
  leave(place: Place): void {
    if (this.#inside.delete(place)) this.#bytes -= place.bytes;
    else if (this.#waiting.delete(place)) place.enter();
    this.#admit();
  }

  #admit(): void {
    for (const place of this.#waiting) {
      if (this.#inside.size > 0 && this.#bytes + place.bytes > this.#size) return;
      this.#waiting.delete(place);
      this.#inside.add(place);
      this.#bytes += place.bytes;
      place.enter();
    }
  }
}

function nothing(): void {}
