import type { Readable } from 'node:stream';

/**
 * Reads the body of a request piece by piece, only when asked, so that flow control holds back a sender whose bytes nobody wants. Unlike the
 * iterator of a Readable, a pending read can be made to fail, and the request is not destroyed with it: it still has to be answered.
 */
export class BodyReader {
  readonly #body: Readable;
  #failure: (() => Error) | undefined;
  #listening = false;
  #wake: (() => void) | undefined;

  constructor(body: Readable) {
    this.#body = body;
  }

  /** Returns what has arrived, or undefined at the end of the body. Waits if there is neither. One read at a time. */
  async next(): Promise<Buffer | undefined> {
    for (;;) {
      if (this.#failure !== undefined) throw this.#failure();
      const piece: Buffer | null = this.#body.read();
      if (piece !== null) return piece;
      if (this.#body.readableEnded) return undefined;
      await this.#change();
    }
  }

  /** Makes the pending read and all later ones fail. The first failure stays. The error is only made if somebody reads. */
  fail(failure: () => Error): void {
    this.#failure ??= failure;
    this.release();
    this.#onChange();
  }

  /** Stops listening. The rest of the body can be resumed, or read again. */
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
