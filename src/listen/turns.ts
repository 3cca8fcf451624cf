import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

interface Exchange {
  readonly response: ServerResponse;
  readonly begin: () => void;
}

/** The requests of one connection. */
interface Queue {
  /** The response that is being sent. */
  current: ServerResponse | undefined;
  readonly waiting: Exchange[];
}

/**
 * Serves the requests of an HTTP/1.1 connection one at a time. A client can send many before it reads a response
 * (pipelining), and the server would hold the responses to all of them.
 */
export class Turns {
  readonly #mostWaiting: number;
  readonly #queues = new WeakMap<Socket, Queue>();

  /** A connection on which more requests wait is closed. */
  constructor(mostWaiting: number) {
    this.#mostWaiting = mostWaiting;
  }

  /** Calls `begin` when the responses to all earlier requests have ended. Never, if the connection ends before. */
  enter({ socket }: IncomingMessage, response: ServerResponse, begin: () => void): void {
    const queue = this.#queueOf(socket);
    if (queue.current === undefined) this.#begin(socket, queue, { response, begin });
    // The connection is still read meanwhile: only so does the server notice that a client has disconnected.
    else if (queue.waiting.push({ response, begin }) > this.#mostWaiting) socket.destroy();
  }

  /** Returns the response that the connection is sending, if there is one. */
  currentOf(socket: Socket): ServerResponse | undefined {
    return this.#queues.get(socket)?.current;
  }

  #queueOf(socket: Socket): Queue {
    const known = this.#queues.get(socket);
    if (known !== undefined) return known;
    const queue: Queue = { current: undefined, waiting: [] };
    this.#queues.set(socket, queue);
    return queue;
  }

  #begin(socket: Socket, queue: Queue, { response, begin }: Exchange): void {
    queue.current = response;
    response.once('close', () => this.#next(socket, queue));
    begin();
  }

  #next(socket: Socket, queue: Queue): void {
    queue.current = undefined;
    // A connection that is being closed sends no further response.
    const next = socket.writable ? queue.waiting.shift() : undefined;
    if (next !== undefined) this.#begin(socket, queue, next);
  }
}
