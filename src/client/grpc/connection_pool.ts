import { Code, ConnectError } from '@connectrpc/connect';
import { Http2Connection, type Route } from './http2_connection.ts';

/** Opens as many connections as calls need, and replaces those that are lost. */
export class ConnectionPool {
  readonly #route: Route;
  readonly #connections = new Set<Http2Connection>();
  #closed = false;

  constructor(route: Route) {
    this.#route = route;
  }

  /**
   * Calls `use` with a connection that has fewer streams than `room`. A connection that was silent for long answers a
   * ping first, because its peer or path may be dead. Errors: FAILED_PRECONDITION after close().
   */
  async connect(room: number, use: (connection: Http2Connection) => void): Promise<void> {
    for (;;) {
      const connection = this.#pick(room);
      if (!connection.isQuiet) return use(connection);
      await connection.ping();
    }
  }

  /** Closes all connections. Later calls fail with FAILED_PRECONDITION, so retry loops end. */
  close(): void {
    this.#closed = true;
    for (const connection of this.#connections) {
      connection.abort(new ConnectError('the client was closed', Code.Canceled));
    }
  }

  #pick(room: number): Http2Connection {
    if (this.#closed) throw new ConnectError('this client is closed', Code.FailedPrecondition);
    for (const connection of this.#connections) {
      if (connection.isUsable && connection.streams < room) return connection;
    }
    const connection: Http2Connection = new Http2Connection(this.#route, () => this.#connections.delete(connection));
    this.#connections.add(connection);
    return connection;
  }
}
