import { Code, ConnectError, type Transport } from '@connectrpc/connect';
import { UNARY_DEADLINE_MS } from './calls.ts';

/** One HTTP/2 connection. */
export interface PooledConnection {
  readonly transport: Transport;
  readonly abort: () => void;
}

/** Streams of a connection that are left for unary calls: a call beyond the server's limit waits without notice. */
const STREAMS_FOR_CALLS = 10;

/** Spreads streams over as many connections as needed. Rejects every call after close(). */
export class ConnectionPool implements Transport {
  readonly #open: () => PooledConnection;
  readonly #streamsPerConnection: () => number;
  readonly #connections: { connection: PooledConnection; streams: number }[] = [];
  #closed = false;

  constructor(open: () => PooledConnection, streamsPerConnection: () => number) {
    this.#open = open;
    this.#streamsPerConnection = streamsPerConnection;
  }

  /** Closes all connections. Later calls fail with FAILED_PRECONDITION, so retry loops end. */
  close(): void {
    this.#closed = true;
    for (const { connection } of this.#connections) connection.abort();
  }

  unary: Transport['unary'] = async (method, signal, timeoutMs = UNARY_DEADLINE_MS, ...rest) => {
    return await this.#pick(Number.POSITIVE_INFINITY).connection.transport.unary(method, signal, timeoutMs, ...rest);
  };

  stream: Transport['stream'] = async (method, signal, ...rest) => {
    const pooled = this.#pick(Math.max(1, this.#streamsPerConnection() - STREAMS_FOR_CALLS));
    pooled.streams += 1;
    let counted = true;
    const release = () => {
      if (counted) pooled.streams -= 1;
      counted = false;
      signal?.removeEventListener('abort', release);
    };
    signal?.addEventListener('abort', release);
    try {
      const response = await pooled.connection.transport.stream(method, signal, ...rest);
      return { ...response, message: releasing(response.message, release) };
    } catch (error) {
      release();
      throw error;
    }
  };

  #pick(room: number): { connection: PooledConnection; streams: number } {
    if (this.#closed) throw new ConnectError('this client is closed', Code.FailedPrecondition);
    const found = this.#connections.find(({ streams }) => streams < room);
    if (found !== undefined) return found;
    const pooled = { connection: this.#open(), streams: 0 };
    this.#connections.push(pooled);
    return pooled;
  }
}

function releasing<T>(messages: AsyncIterable<T>, release: () => void): AsyncIterable<T> {
  const inner = messages[Symbol.asyncIterator]();
  const next = async (): Promise<IteratorResult<T>> => {
    try {
      const result = await inner.next();
      if (result.done === true) release();
      return result;
    } catch (error) {
      release();
      throw error;
    }
  };
  return { [Symbol.asyncIterator]: () => ({ next }) };
}
