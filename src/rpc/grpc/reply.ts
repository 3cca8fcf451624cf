import type { Http2ServerResponse, ServerHttp2Stream } from 'node:http2';
import type { ConnectError } from '@connectrpc/connect';
import { setTrailerStatus } from '@connectrpc/connect/protocol-grpc';
import { isLarge, type UnsentMessages } from '../unsent.ts';
import { callerGone } from './context.ts';

const HEADERS = { ':status': 200, 'content-type': 'application/grpc+proto' };
const OK = { 'grpc-status': '0' };

/** Writes the response of a call: headers with its first message, its status in the trailers. */
export class Reply {
  readonly #response: Http2ServerResponse;
  readonly #stream: ServerHttp2Stream;
  readonly #unsent: UnsentMessages;

  constructor(response: Http2ServerResponse, unsent: UnsentMessages) {
    this.#response = response;
    this.#stream = response.stream;
    this.#unsent = unsent;
  }

  /**
   * Writes one message of a stream. Returns undefined if there is room for the next one, else a promise to wait for.
   * Errors: the caller has disconnected.
   */
  send(envelope: Buffer): Promise<void> | undefined {
    return isLarge(envelope) ? this.#sendLarge(envelope) : this.#write(envelope);
  }

  /** Ends the response with one message. Errors: the caller has disconnected. */
  answer(envelope: Buffer): Promise<void> | undefined {
    if (isLarge(envelope)) return this.#answerLarge(envelope);
    this.#end(envelope, undefined);
    return undefined;
  }

  /** Ends a stream of messages. Errors: the caller has disconnected. */
  end(): void {
    this.#begin();
    this.#response.addTrailers(OK);
    this.#stream.end();
  }

  /** Does nothing if the caller has disconnected. */
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

  async #sendLarge(envelope: Buffer): Promise<void> {
    const sent = await this.#unsent.enter(this.#stream, envelope.length);
    try {
      await this.#write(envelope);
    } finally {
      sent();
    }
  }

  async #answerLarge(envelope: Buffer): Promise<void> {
    const sent = await this.#unsent.enter(this.#stream, envelope.length);
    this.#end(envelope, sent);
  }

  #write(envelope: Buffer): Promise<void> | undefined {
    this.#begin();
    return this.#stream.write(envelope) ? undefined : this.#room();
  }

  #end(envelope: Buffer, sent: (() => void) | undefined): void {
    this.#begin();
    this.#response.addTrailers(OK);
    this.#stream.end(envelope, sent);
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
