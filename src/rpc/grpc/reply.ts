import type { Http2ServerResponse, ServerHttp2Stream } from 'node:http2';
import type { ConnectError } from '@connectrpc/connect';
import { setTrailerStatus } from '@connectrpc/connect/protocol-grpc';
import { callerGone } from './context.ts';

const HEADERS = { ':status': 200, 'content-type': 'application/grpc+proto' };
const OK = { 'grpc-status': '0' };

/** Writes the answer of a call: headers with its first message, its status in the trailers. */
export class Reply {
  readonly #response: Http2ServerResponse;
  readonly #stream: ServerHttp2Stream;

  constructor(response: Http2ServerResponse) {
    this.#response = response;
    this.#stream = response.stream;
  }

  /** Undefined: there is room for more; otherwise wait for it. Errors: the caller is gone. */
  send(envelope: Buffer): Promise<void> | undefined {
    this.#begin();
    return this.#stream.write(envelope) ? undefined : this.#room();
  }

  /** Ends with one message. Errors: the caller is gone. */
  answer(envelope: Buffer): void {
    this.#begin();
    this.#response.addTrailers(OK);
    this.#stream.end(envelope);
  }

  /** Ends a stream of messages. Errors: the caller is gone. */
  end(): void {
    this.#begin();
    this.#response.addTrailers(OK);
    this.#stream.end();
  }

  /** Does nothing where nobody can hear it. */
  fail(error: ConnectError): void {
    if (this.#stream.destroyed || this.#stream.closed) return;
    const status = Object.fromEntries(setTrailerStatus(new Headers(), error));
    if (this.#stream.headersSent) {
      this.#response.addTrailers(status);
      this.#stream.end();
    } else {
      this.#stream.respond({ ...HEADERS, ...status }, { endStream: true });
    }
  }

  #begin(): void {
    if (this.#stream.destroyed || this.#stream.closed) throw callerGone();
    // Node's response sends the trailers that were added to it.
    if (!this.#stream.headersSent) this.#stream.respond(HEADERS, { waitForTrailers: true });
  }

  #room(): Promise<void> {
    const stream = this.#stream;
    return new Promise((resolve, reject) => {
      const drained = () => {
        stream.off('close', closed);
        resolve();
      };
      const closed = () => {
        stream.off('drain', drained);
        reject(callerGone());
      };
      stream.once('drain', drained);
      stream.once('close', closed);
    });
  }
}
