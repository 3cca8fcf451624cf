import { constants, type Http2Session, type ServerHttp2Stream } from 'node:http2';
import { SlotQueue } from '../queue/slot_queue.ts';
import { cutStream, type HttpResponse } from './http.ts';

const LARGE_BYTES = 128 * 1024;

/** Smaller messages need not wait: one for each stream of a connection needs little memory. */
export function isLarge(message: { readonly length: number }): boolean {
  return message.length > LARGE_BYTES;
}

/** Thrown for a message that must not even wait. Other rooms recognise it by its code. */
export class UnreadError extends Error {
  override readonly name = 'UnreadError';
  readonly code = 'ERR_UNREAD';

  constructor() {
    super('Too many large responses of the connection are unread: read them, or make fewer calls at once.');
  }
}

/**
 * Bounds the bytes of large messages that each HTTP/2 connection has been given and has not sent, because its client
 * does not read. Without the bound, such messages could fill the memory that Node allows a session, and Node resets
 * every new stream of a full session.
 */
export class UnsentMessages {
  readonly #bytesPerConnection: number;
  readonly #waitingBytes: number;
  readonly #connections = new WeakMap<Http2Session, SlotQueue>();

  /** `waitingBytes`: bytes of the messages of one connection that may wait for room. */
  constructor(bytesPerConnection: number, waitingBytes: number) {
    this.#bytesPerConnection = bytesPerConnection;
    this.#waitingBytes = waitingBytes;
  }

  /**
   * Waits for room for a large message. The returned function releases the room, as does the end of the stream. Fails
   * if too many bytes wait already: the call must be cut off then, so that its message is not kept.
   */
  async enter(stream: ServerHttp2Stream, bytes: number): Promise<() => void> {
    const { session } = stream;
    if (session === undefined || stream.closed) return nothing;
    const queue = this.#queueOf(session);
    if (queue.waitingWeight + bytes > this.#waitingBytes) throw new UnreadError();
    const slot = queue.enter(bytes);
    stream.once('close', slot.end);
    await slot.begun;
    return () => {
      stream.off('close', slot.end);
      slot.end();
    };
  }

  /** Ends a response with these bytes. Large ones wait until there is room. */
  async end(response: HttpResponse, bytes: Buffer): Promise<void> {
    if (!('stream' in response)) {
      response.end(bytes);
    } else if (!isLarge(bytes)) {
      response.end(bytes);
    } else {
      const sent = await this.enter(response.stream, bytes.length).catch(() => undefined);
      if (sent === undefined) cutStream(response.stream, constants.NGHTTP2_ENHANCE_YOUR_CALM);
      else response.end(bytes, sent);
    }
  }

  /** Delays large chunks until there is room. Callers must request a chunk only when the previous one was sent. */
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

  #queueOf(session: Http2Session): SlotQueue {
    let queue = this.#connections.get(session);
    if (queue === undefined) {
      queue = new SlotQueue(this.#bytesPerConnection);
      this.#connections.set(session, queue);
    }
    return queue;
  }
}

function nothing(): void {}
