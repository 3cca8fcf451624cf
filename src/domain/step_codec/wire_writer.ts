/**
 * Writes protobuf's wire format into one growing buffer. Lengths of nested messages are written after their content,
 * which is moved if its length takes more than one byte. Fields must be written in order of number, so that the bytes
 * are the canonical encoding.
 */
export class WireWriter {
  #bytes: Buffer;
  #at = 0;

  constructor(capacity: number) {
    this.#bytes = Buffer.allocUnsafe(capacity);
  }

  get length(): number {
    return this.#at;
  }

  /** Returns a copy of the written bytes, and empties the buffer. */
  take(): Uint8Array {
    const taken = new Uint8Array(this.#bytes.subarray(0, this.#at));
    this.#at = 0;
    return taken;
  }

  /** Whether bytes [from, to) are what was written. */
  hasWritten(bytes: Uint8Array, from: number, to: number): boolean {
    return this.#bytes.compare(bytes, from, to, 0, this.#at) === 0;
  }

  /** Drops what was written. */
  clear(): void {
    this.#at = 0;
  }

  /** Returns the written bytes without copying them. The writer must not be used afterwards. */
  finish(): Uint8Array {
    return this.#bytes.subarray(0, this.#at);
  }

  /** Writes bytes [from, to) of another message as they are. */
  raw(bytes: Buffer, from: number, to: number): void {
    this.#reserve(to - from);
    bytes.copy(this.#bytes, this.#at, from, to);
    this.#at += to - from;
  }

  /** `tag`: field number × 8 + wire type. All tags of steps are below 128, so each is one byte. */
  tag(tag: number): void {
    this.#reserve(1);
    this.#bytes[this.#at++] = tag;
  }

  text(tag: number, value: string): void {
    if (value.length < SHORT_TEXT) {
      // Its UTF-8 has at most three bytes for each UTF-16 code unit, so its length is one byte.
      this.#reserve(2 + 3 * value.length);
      const bytes = this.#bytes;
      const lengthAt = this.#at + 1;
      bytes[this.#at] = tag;
      const written = writeShort(bytes, value, lengthAt + 1);
      bytes[lengthAt] = written;
      this.#at = lengthAt + 1 + written;
      return;
    }
    const size = Buffer.byteLength(value);
    this.tag(tag);
    this.#varint(size);
    this.#reserve(size);
    this.#at += this.#bytes.write(value, this.#at, size, 'utf8');
  }

  bytes(tag: number, value: Uint8Array): void {
    this.tag(tag);
    this.delimited(value);
  }

  /** Writes a message of a sequence in which each follows its length. */
  delimited(message: Uint8Array): void {
    this.#varint(message.length);
    this.#reserve(message.length);
    this.#bytes.set(message, this.#at);
    this.#at += message.length;
  }

  /** Writes what another writer has written, after its length, and empties that writer. */
  delimitedFrom(other: WireWriter): void {
    const length = other.#at;
    this.#varint(length);
    this.raw(other.#bytes, 0, length);
    other.#at = 0;
  }

  flag(tag: number): void {
    this.tag(tag);
    this.tag(1);
  }

  /** An integer from 0 to 2^53 - 1. */
  unsigned(tag: number, value: number): void {
    this.tag(tag);
    this.#varint(value);
  }

  /** An int64. */
  long(tag: number, value: bigint): void {
    if (value >= 0n && value <= MAX_SAFE) this.unsigned(tag, Number(value));
    else {
      this.tag(tag);
      this.#bigVarint(BigInt.asUintN(64, value));
    }
  }

  double(tag: number, value: number): void {
    this.#reserve(9);
    this.#bytes[this.#at] = tag;
    this.#at = this.#bytes.writeDoubleLE(withoutPayload(value), this.#at + 1);
  }

  /** A packed list of int32. */
  packedInts(tag: number, values: readonly number[]): void {
    const begun = this.begin(tag);
    for (const value of values) {
      if (value >= 0) this.#varint(value);
      else this.#bigVarint(BigInt.asUintN(64, BigInt(value)));
    }
    this.end(begun);
  }

  /** A packed list of float. */
  packedFloats(tag: number, values: readonly number[]): void {
    this.tag(tag);
    this.#varint(values.length * 4);
    this.#reserve(values.length * 4);
    for (const value of values) this.#at = this.#bytes.writeFloatLE(withoutPayload(value), this.#at);
  }

  /** Begins a nested message. Returns its position, for `end`. */
  begin(tag: number): number {
    this.#reserve(2);
    this.#bytes[this.#at] = tag;
    this.#at += 2;
    return this.#at;
  }

  end(begun: number): void {
    const size = this.#at - begun;
    const extra = varintSize(size) - 1;
    if (extra > 0) {
      this.#reserve(extra);
      this.#bytes.copyWithin(begun + extra, begun, this.#at);
    }
    // The room is reserved above: growing the buffer here would lose the bytes after the length.
    this.#at = begun - 1;
    this.#putVarint(size);
    this.#at += size;
  }

  #varint(value: number): void {
    this.#reserve(8);
    this.#putVarint(value);
  }

  #putVarint(value: number): void {
    let rest = value;
    while (rest > 127) {
      this.#bytes[this.#at++] = (rest % 128) + 128;
      rest = rest < 2 ** 31 ? rest >>> 7 : Math.floor(rest / 128);
    }
    this.#bytes[this.#at++] = rest;
  }

  #bigVarint(value: bigint): void {
    this.#reserve(10);
    let rest = value;
    for (; rest > 127n; rest >>= 7n) this.#bytes[this.#at++] = Number(rest & 127n) + 128;
    this.#bytes[this.#at++] = Number(rest);
  }

  #reserve(count: number): void {
    if (this.#at + count <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(2 * this.#bytes.length, this.#at + count));
    this.#bytes.copy(larger, 0, 0, this.#at);
    this.#bytes = larger;
  }
}

/** Shorter texts have at most 127 bytes of UTF-8. */
const SHORT_TEXT = 43;
const MAX_SAFE = BigInt(Number.MAX_SAFE_INTEGER);

/** JavaScript may keep the payload of a NaN that it has read. Stored bytes have one NaN. */
function withoutPayload(value: number): number {
  return Number.isNaN(value) ? Number.NaN : value;
}

/** Writes ASCII itself, because a call of `Buffer.write` costs more than a loop over so few characters. */
function writeShort(bytes: Buffer, value: string, at: number): number {
  for (let i = 0; i < value.length; i += 1) {
    const code = value.charCodeAt(i);
    if (code > 127) return bytes.write(value, at, 'utf8');
    bytes[at + i] = code;
  }
  return value.length;
}

/** Returns the number of bytes of a varint. */
export function varintSize(value: number): number {
  let size = 1;
  for (let rest = value; rest > 127; rest = Math.floor(rest / 128)) size += 1;
  return size;
}
