import { AnabranchError } from '../domain/errors.ts';

/** R3: detects a client that does not read a response for too long. Uses one timer for each stream. */
export class ReaderWatch {
  readonly #limitMs: number;
  readonly #onSlow: (next: bigint | undefined) => void;
  #timer: NodeJS.Timeout | undefined;
  #untaken: { readonly next: bigint | undefined } | undefined;

  constructor(limitMs: number, onSlow: (next: bigint | undefined) => void) {
    this.#limitMs = limitMs;
    this.#onSlow = onSlow;
  }

  /** Must be called for each response. A client that does not receive it can continue at `next`. */
  given(next: bigint | undefined): void {
    this.#untaken = { next };
    if (this.#timer === undefined) this.#timer = setTimeout(() => this.#check(), this.#limitMs).unref();
    else this.#timer.refresh();
  }

  taken(): void {
    this.#untaken = undefined;
  }

  end(): void {
    this.#untaken = undefined;
    clearTimeout(this.#timer);
  }

  #check(): void {
    if (this.#untaken !== undefined) this.#onSlow(this.#untaken.next);
  }
}

/** `next` is the first step that the client has not read; undefined in a stream without steps. */
export function slowReader(next: bigint | undefined): AnabranchError {
  const how =
    next === undefined ? 'read again' : `continue after the last step that arrived, or at start_step_number ${next}`;
  return new AnabranchError(
    'SLOW_READER',
    `The reader received nothing for too long, so the server ended the stream: ${how}.`,
    { metadata: next === undefined ? {} : { next_step_number: `${next}` } },
  );
}
