import { envelopeEnd, HEADER_BYTES, isCompressed } from './envelope.ts';

/** Larger messages wait for a slot to be decoded, and for room while they arrive. */
export const SMALL_BYTES = 64 * 1024;
const NOTHING: Buffer = Buffer.alloc(0);

export function isEnveloped(contentType: string | undefined): boolean {
  return contentType !== undefined && /^application\/(grpc|connect)/i.test(contentType);
}

/**
 * Collects the pieces of one message. A single piece is not copied. The buffer grows by doubling, so an announced
 * length alone allocates nothing.
 */
export class MessageBytes {
  #bytes: Buffer = NOTHING;
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** Adds a piece. `expected` is the size of the whole message, as far as known. */
  add(piece: Buffer, expected: number): void {
    const needed = this.#length + piece.length;
    if (this.#length === 0) {
      this.#bytes = piece;
      this.#length = needed;
      return;
    }
    if (this.#bytes.length < needed) {
      const grown = Buffer.allocUnsafe(Math.max(needed, Math.min(expected, Math.max(256, this.#bytes.length * 2))));
      this.#bytes.copy(grown, 0, 0, this.#length);
      this.#bytes = grown;
    }
    piece.copy(this.#bytes, this.#length);
    this.#length = needed;
  }

  /** Returns the size of the envelope that begins here, or of its header while that is incomplete. */
  envelopeBytes(): number {
    return this.#length < HEADER_BYTES ? HEADER_BYTES : envelopeEnd(this.#bytes, 0);
  }

  /** Returns the collected bytes and resets the collector. */
  take(): Buffer {
    const taken = this.#bytes.subarray(0, this.#length);
    this.#bytes = NOTHING;
    this.#length = 0;
    return taken;
  }
}

/**
 * Cuts a body into runs of whole envelopes, independent of the frame sizes. A decoder that scans all earlier pieces
 * again with each new one would take quadratic time. Holds at most one envelope.
 */
export class EnvelopeCollector {
  readonly #largest: number;
  readonly #unfinished = new MessageBytes();

  constructor(maxMessageBytes: number) {
    this.#largest = HEADER_BYTES + maxMessageBytes;
  }

  /** Bytes of the unfinished envelope at the end. */
  get heldBytes(): number {
    return this.#unfinished.length;
  }

  /**
   * Returns what is complete now. The beginning of an envelope that is too large is returned at once, for the decoder
   * to reject.
   */
  add(piece: Buffer): Buffer[] {
    const whole: Buffer[] = [];
    let rest = piece;
    while (this.#unfinished.length > 0 && rest.length > 0) {
      const wanted = this.#unfinished.envelopeBytes();
      const taken = Math.min(wanted - this.#unfinished.length, rest.length);
      this.#unfinished.add(rest.subarray(0, taken), wanted);
      rest = rest.subarray(taken);
      if (this.#isWhole()) whole.push(this.#unfinished.take());
    }
    const end = this.#endOfWhole(rest);
    if (end > 0) whole.push(rest.subarray(0, end));
    // Copied, so that a few bytes do not keep a large buffer in memory.
    if (end < rest.length) this.#unfinished.add(Buffer.from(rest.subarray(end)), 0);
    return whole;
  }

  /** Returns the unfinished envelope. */
  take(): Buffer {
    return this.#unfinished.take();
  }

  #isWhole(): boolean {
    if (this.#unfinished.length < HEADER_BYTES) return false;
    const wanted = this.#unfinished.envelopeBytes();
    return this.#unfinished.length >= wanted || wanted > this.#largest;
  }

  /** Returns how many bytes at the beginning are whole envelopes. Returns all bytes if one envelope is too large. */
  #endOfWhole(piece: Buffer): number {
    let at = 0;
    for (let end = envelopeEnd(piece, at); end - at <= this.#largest; end = envelopeEnd(piece, at)) {
      if (end > piece.length) return at;
      at = end;
    }
    return piece.length;
  }
}

/** Cuts a run of envelopes so that each large or compressed one is alone, because it waits for its own slot. */
export function cutForSlots(run: Buffer): readonly Buffer[] {
  const parts: Buffer[] = [];
  let begin = 0;
  for (let at = 0, end = 0; at < run.length; at = end) {
    end = envelopeEnd(run, at);
    if (!isHeavy(run, at, end)) continue;
    if (begin < at) parts.push(run.subarray(begin, at));
    parts.push(run.subarray(at, end));
    begin = end;
  }
  if (begin < run.length) parts.push(begin === 0 ? run : run.subarray(begin));
  return parts;
}

/**
 * Returns how much capacity of the decode queue a message takes; 0 means that it needs no slot. A compressed message
 * takes all of it, because its real size is unknown.
 */
export function weightOf(message: Buffer, compressed: boolean, maxMessageBytes: number): number {
  if (compressed) return maxMessageBytes;
  return message.length > SMALL_BYTES ? Math.min(message.length, maxMessageBytes) : 0;
}

/** An envelope that is cut off at the end of the run is too large, and is rejected without being decoded. */
function isHeavy(run: Buffer, at: number, end: number): boolean {
  return end <= run.length && (isCompressed(run, at) || end - at > SMALL_BYTES);
}
