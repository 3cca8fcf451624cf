import { Http2SessionManager } from '@connectrpc/connect-node';

/**
 * Http2SessionManager stops listening to a session when it lets go of it, while the session may still report why it failed: an `error` that
 * nobody listens to ends the process. (A peer that speaks HTTP/1.1, and a client that is closed when the first call has failed.) Every call
 * is told of the failure by its own stream, so here it is only heard.
 */
export class PatientSessions extends Http2SessionManager {
  readonly #heard = new WeakSet<object>();

  override async request(...args: Parameters<Http2SessionManager['request']>) {
    const stream = await super.request(...args);
    const { session } = stream;
    if (session !== undefined && !this.#heard.has(session)) {
      this.#heard.add(session);
      session.on('error', () => undefined);
    }
    return stream;
  }
}
