import type { Readable } from 'node:stream';

/**
 * Reads the body of a request piece by piece on demand, so that flow control slows down senders. A pending read can be
 * made to fail, unlike that of a Readable's iterator. The request is not destroyed then, because it still needs an
 * answer.
 */
export class BodyReader {
  readonly #body: Readable;
  #failure: (() => Error) | undefined;
  #listening = false;
  #wake: (() => void) | undefined;

  constructor(body: Readable) {
    this.#body = body;
  }

  /**
   * Returns the next piece, or undefined at the end of the body. Waits if there is neither. Only one read at a time.
   */
  async next(): Promise<Buffer | undefined> {
    for (;;) {
      if (this.#failure !== undefined) throw this.#failure();
      const piece: Buffer | null = this.#body.read();
      if (piece !== null) return piece;
      if (this.#body.readableEnded) return undefined;
      await this.#change();
    }
  }

  /**
   * Makes the pending read and all later reads fail. The first failure wins. The error is created only if there is a
   * read.
   */
  fail(failure: () => Error): void {
    this.#failure ??= failure;
    this.release();
    this.#onChange();
  }

  /** Removes the listeners. The rest of the body can be resumed or read again. */
  release(): void {
    if (!this.#listening) return;
    this.#listening = false;
    this.#body.off('readable', this.#onChange);
    this.#body.off('end', this.#onChange);
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
      if (this.#listening) return;
      this.#listening = true;
      this.#body.on('readable', this.#onChange);
      this.#body.on('end', this.#onChange);
    });
  }

  readonly #onChange = () => {
    const wake = this.#wake;
    this.#wake = undefined;
    wake?.();
  };
}
