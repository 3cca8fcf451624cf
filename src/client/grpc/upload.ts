import type { ClientHttp2Stream } from 'node:http2';

/** Sends the messages of a request, each when the previous one is written. */
export class Upload<T> {
  readonly #messages: AsyncIterator<T>;
  readonly #encode: (message: T) => Uint8Array;
  #ended = false;

  constructor(messages: AsyncIterable<T>, encode: (message: T) => Uint8Array) {
    this.#messages = messages[Symbol.asyncIterator]();
    this.#encode = encode;
  }

  /** Ends the request after the last message. Errors: those of the messages. Failures of the stream end it silently. */
  async sendTo(stream: ClientHttp2Stream): Promise<void> {
    for (;;) {
      const message = await this.#messages.next();
      if (this.#ended) return;
      if (message.done === true) break;
      const bytes = this.#encode(message.value);
      if (!stream.writable) return;
      await new Promise((resolve) => stream.write(bytes, resolve));
      if (this.#ended) return;
    }
    this.#ended = true;
    stream.end();
  }

  /**
   * Ends the caller's messages early, so that they release what they hold. Errors of this have no effect: the call has
   * ended.
   */
  stop(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#messages.return?.().catch(() => undefined);
  }
}
