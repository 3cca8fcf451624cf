import { isUtf8 } from 'node:buffer';
import type { Digest } from '../ids.ts';
import { LIMITS } from '../limits.ts';
import { WireReader } from './wire_reader.ts';

/** One error for all, because declining must not cost more than decoding. */
export const DECLINED = new Error('the message must be decoded');
const decline = () => DECLINED;

const DIGEST = /^[0-9a-f]{64}$/;
const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
/** Text of at most so many bytes is checked byte by byte, which costs less than a native call. */
const SHORT_TEXT = 64;

/** Texts of a message that are kept, to decode repeated names once. */
const KNOWN_TEXTS = 64;

/** Reads the values of a message with steps, and declines those that must not be stored as they are. */
export class CheckedReader {
  readonly bytes: Buffer;
  readonly input: WireReader;
  /** Messages and map entries so far (see `LIMITS.messageValues`). */
  #values = 0;
  /** Decoded texts of this message. The index is computed from the bytes of the text. */
  readonly #known: { readonly text: string; readonly from: number; readonly to: number }[] = [];

  constructor(bytes: Uint8Array, from: number, to: number) {
    this.bytes = Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.input = new WireReader(this.bytes, from, to, decline);
  }

  get values(): number {
    return this.#values;
  }

  /** Counts a message or map entry. Declines before a message with many of them takes much memory. */
  count(): void {
    this.#values += 1;
    demand(this.#values <= LIMITS.messageValues);
  }

  digest(): Digest {
    return this.#ascii(DIGEST);
  }

  /** A UUID in its stored form. */
  uuid(): string {
    return this.#ascii(UUID);
  }

  /** Returns the decoded text. Names repeat from step to step, so most of them are known. */
  textValue(most: number, least = 1): string {
    const from = this.text(least, most);
    const to = this.input.at;
    if (from === to) return '';
    const place = (this.bytes[from]! + 3 * this.bytes[to - 1]! + 7 * (to - from)) % KNOWN_TEXTS;
    const known = this.#known[place];
    if (known !== undefined && isSame(this.bytes, known.from, known.to, from, to)) return known.text;
    const text = this.bytes.toString('utf8', from, to);
    this.#known[place] = { text, from, to };
    return text;
  }

  /** Checks text of `least` to `most` bytes. Returns where it begins. */
  text(least: number, most: number): number {
    const from = this.input.skip();
    const length = this.input.at - from;
    demand(length >= least && length <= most && isStorable(this.bytes, from, this.input.at));
    return from;
  }

  /**
   * Parses the bytes as Latin-1, which is faster than UTF-8. The result is the same for valid UTF-8: outside of
   * strings, JSON has only ASCII, and within strings it allows all other characters.
   */
  json(): void {
    const from = this.input.skip();
    const to = this.input.at;
    demand(isStorable(this.bytes, from, to));
    try {
      JSON.parse(this.bytes.toString('latin1', from, to));
    } catch {
      throw DECLINED;
    }
  }

  double(): number {
    const from = this.input.at;
    const value = this.input.double();
    demand(!Number.isNaN(value) || this.bytes.readBigUInt64LE(from) === NAN_BITS);
    return value;
  }

  floats(): void {
    const from = this.input.skip();
    const to = this.input.at;
    demand(to > from && (to - from) % 4 === 0);
    for (let at = from; at < to; at += 4) {
      const bits = this.bytes.readUInt32LE(at);
      demand((bits & 0x7fff_ffff) <= INFINITE_FLOAT || bits === NAN_FLOAT);
    }
  }

  #ascii(form: RegExp): string {
    const from = this.input.skip();
    const text = this.bytes.toString('latin1', from, this.input.at);
    demand(form.test(text));
    return text;
  }
}

/** The only NaN that is stored. */
const NAN_BITS = 0x7ff8_0000_0000_0000n;
const NAN_FLOAT = 0x7fc0_0000;
const INFINITE_FLOAT = 0x7f80_0000;

export function demand(condition: boolean): void {
  if (!condition) throw DECLINED;
}

export function given<T>(value: T | undefined): T {
  if (value === undefined) throw DECLINED;
  return value;
}

/** Declines 0, which canonical bytes leave out, and negative numbers, which are rejected. */
export function positive(value: bigint): bigint {
  demand(value > 0n);
  return value;
}

export function nonZero(value: number): number {
  demand(value !== 0);
  return value;
}

/** W11: UTF-8 without U+0000. */
function isStorable(bytes: Buffer, from: number, to: number): boolean {
  if (to - from > SHORT_TEXT) return isLongStorable(bytes.subarray(from, to));
  for (let at = from; at < to; at += 1) {
    const byte = bytes[at]!;
    if (byte === 0 || byte > 127) return isLongStorable(bytes.subarray(from, to));
  }
  return true;
}

function isSame(bytes: Uint8Array, from: number, to: number, otherFrom: number, otherTo: number): boolean {
  if (to - from !== otherTo - otherFrom) return false;
  for (let at = from, other = otherFrom; at < to; at += 1, other += 1) if (bytes[at] !== bytes[other]) return false;
  return true;
}

function isLongStorable(text: Buffer): boolean {
  return isUtf8(text) && !text.includes(0);
}
