import type { ServerHttp2Stream } from 'node:http2';
import type { ConnectError } from '@connectrpc/connect';
import { setTrailerStatus } from '@connectrpc/connect/protocol-grpc';
import { SAFE_HEADERS } from '../../listen/safe_headers.ts';
import { isLarge, type UnsentMessages } from '../../listen/unsent.ts';
import { REQUEST_ID } from '../call_report.ts';
import { callerGone } from './context.ts';
import type { Envelope } from './envelope.ts';

const HEADERS = { ':status': 200, 'content-type': 'application/grpc+proto', ...SAFE_HEADERS };
const OK = { 'grpc-status': '0' };

/** Writes the response of a call: headers with its first message, its status in the trailers. */
export class Reply {
  readonly #stream: ServerHttp2Stream;
  readonly #unsent: UnsentMessages;
  readonly #headers: Readonly<Record<string, string | number>>;
  #trailers: Readonly<Record<string, string>> = OK;

  constructor(stream: ServerHttp2Stream, unsent: UnsentMessages, requestId: string) {
    this.#headers = { ...HEADERS, [REQUEST_ID]: requestId };
    this.#stream = stream;
    this.#unsent = unsent;
  }

  /**
   * Writes one message of a stream. Returns undefined if there is room for the next one, else a promise to wait for.
   * Errors: the caller has disconnected.
   */
  send(envelope: Envelope): Promise<void> | undefined {
    return isLarge(envelope) ? this.#sendLarge(envelope) : this.#write(envelope);
  }

  /** Ends the response with one message. Errors: the caller has disconnected. */
  answer(envelope: Envelope): Promise<void> | undefined {
    if (isLarge(envelope)) return this.#answerLarge(envelope);
    this.#end(envelope, undefined);
    return undefined;
  }

  /** Ends a stream of messages. Errors: the caller has disconnected. */
  end(): void {
    this.#begin();
    this.#stream.end();
  }

  /** Does nothing if the caller has disconnected. */
  fail(error: ConnectError): void {
    if (this.#stream.destroyed || this.#stream.closed) return;
    const status = Object.fromEntries(setTrailerStatus(new Headers(), error));
    if (this.#stream.headersSent) {
      this.#trailers = status;
      this.#stream.end();
    } else {
      this.#stream.respond({ ...this.#headers, ...status }, { endStream: true });
    }
  }

  #begin(): void {
    if (this.#stream.destroyed || this.#stream.closed) throw callerGone();
    if (this.#stream.headersSent) return;
    this.#stream.once('wantTrailers', () => this.#stream.sendTrailers(this.#trailers));
    this.#stream.respond(this.#headers, { waitForTrailers: true });
  }

  async #sendLarge(envelope: Envelope): Promise<void> {
    const sent = await this.#unsent.enter(this.#stream, envelope.length);
    try {
      await this.#write(envelope);
    } finally {
      sent();
    }
  }

  async #answerLarge(envelope: Envelope): Promise<void> {
    const sent = await this.#unsent.enter(this.#stream, envelope.length);
    this.#end(envelope, sent);
  }

  #write(envelope: Envelope): Promise<void> | undefined {
    this.#begin();
    const { pieces } = envelope;
    if (pieces.length > 1) this.#stream.cork();
    let hasRoom = true;
    for (const piece of pieces) hasRoom = this.#stream.write(piece);
    if (pieces.length > 1) this.#stream.uncork();
    return hasRoom ? undefined : this.#room();
  }

  #end(envelope: Envelope, sent: (() => void) | undefined): void {
    this.#begin();
    for (const piece of envelope.pieces.slice(0, -1)) this.#stream.write(piece);
    this.#stream.end(envelope.pieces.at(-1), sent);
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
