import { Code, ConnectError, type Transport } from '@connectrpc/connect';
import { UNARY_DEADLINE_MS } from './calls.ts';

/** One HTTP/2 connection. */
export interface Lane {
  readonly transport: Transport;
  readonly abort: () => void;
}

/** The server takes 100 calls a connection; the rest is left to short ones. A call too many would wait, silently. */
const STREAMS_PER_LANE = 90;

/** Spreads streams over as many connections as they need, and refuses everything once it is closed. */
export class Lanes implements Transport {
  readonly #open: () => Lane;
  readonly #lanes: { lane: Lane; streams: number }[] = [];
  #closed = false;

  constructor(open: () => Lane) {
    this.#open = open;
  }

  /** Ends all connections, for good: retries meet a refusal that is final. */
  close(): void {
    this.#closed = true;
    for (const { lane } of this.#lanes) lane.abort();
  }

  unary: Transport['unary'] = async (method, signal, timeoutMs = UNARY_DEADLINE_MS, ...rest) => {
    return await this.#pick(Number.POSITIVE_INFINITY).lane.transport.unary(method, signal, timeoutMs, ...rest);
  };

  stream: Transport['stream'] = async (method, signal, ...rest) => {
    const place = this.#pick(STREAMS_PER_LANE);
    place.streams += 1;
    let held = true;
    const release = () => {
      if (held) place.streams -= 1;
      held = false;
      signal?.removeEventListener('abort', release);
    };
    signal?.addEventListener('abort', release);
    try {
      const response = await place.lane.transport.stream(method, signal, ...rest);
      return { ...response, message: releasing(response.message, release) };
    } catch (error) {
      release();
      throw error;
    }
  };

  #pick(room: number): { lane: Lane; streams: number } {
    if (this.#closed) throw new ConnectError('this client is closed', Code.FailedPrecondition);
    const found = this.#lanes.find(({ streams }) => streams < room);
    if (found !== undefined) return found;
    const place = { lane: this.#open(), streams: 0 };
    this.#lanes.push(place);
    return place;
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
