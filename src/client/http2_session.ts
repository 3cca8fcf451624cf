import { Http2SessionManager } from '@connectrpc/connect-node';

/**
 * Keeps an `error` listener on every session. Http2SessionManager removes its listeners when it drops a session, but
 * the session can still emit `error`, and an unhandled `error` event ends the process. This happens with a peer that
 * speaks HTTP/1.1, and when the client is closed after its first call failed. The listener ignores the error, because
 * every call gets it from its own stream.
 */
export class PatientSessions extends Http2SessionManager {
  readonly #listenedTo = new WeakSet<object>();

  override async request(...args: Parameters<Http2SessionManager['request']>) {
    const stream = await super.request(...args);
    const { session } = stream;
    if (session !== undefined && !this.#listenedTo.has(session)) {
      this.#listenedTo.add(session);
      session.on('error', () => undefined);
    }
    return stream;
  }
}
