import { Code, ConnectError } from '@connectrpc/connect';

/** One byte of flags, four bytes of length. */
const HEADER_BYTES = 5;

/** Returns a message in its envelope. */
export function envelopeOf(message: Uint8Array): Uint8Array {
  const envelope = Buffer.allocUnsafe(HEADER_BYTES + message.length);
  envelope[0] = 0;
  envelope.writeUInt32BE(message.length, 1);
  envelope.set(message, HEADER_BYTES);
  return envelope;
}

/** Finds the messages of a body that arrives in pieces. */
export class EnvelopeReader {
  readonly #maxBytes: number;
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerLength = 0;
  #message: Uint8Array | undefined;
  #length = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Whether the body so far ends within a message. */
  get isWithinMessage(): boolean {
    return this.#headerLength > 0;
  }

  /**
   * Returns the messages that this piece completes, as copies: a small message must not keep a large piece in memory.
   * Errors: ConnectError.
   */
  read(piece: Uint8Array): Uint8Array[] {
    const messages: Uint8Array[] = [];
    for (let at = 0; at < piece.length; ) {
      while (this.#headerLength < HEADER_BYTES && at < piece.length) this.#header[this.#headerLength++] = piece[at++]!;
      if (this.#headerLength < HEADER_BYTES) break;
      this.#message ??= this.#allocate();
      const part = piece.subarray(at, at + this.#message.length - this.#length);
      this.#message.set(part, this.#length);
      this.#length += part.length;
      at += part.length;
      if (this.#length < this.#message.length) break;
      messages.push(this.#message);
      this.#message = undefined;
      this.#headerLength = this.#length = 0;
    }
    return messages;
  }

  #allocate(): Uint8Array {
    if (this.#header[0] !== 0) {
      const text = `the server sent a message with the flags ${this.#header[0]}, but this client accepts no compression`;
      throw new ConnectError(text, Code.Internal);
    }
    const length = this.#header.readUInt32BE(1);
    if (length > this.#maxBytes) {
      const text = `the server sent a message of ${length} bytes: at most ${this.#maxBytes} are accepted`;
      throw new ConnectError(text, Code.ResourceExhausted);
    }
    return new Uint8Array(length);
  }
}
