import { isUtf8 } from 'node:buffer';
import { DamagedStep } from './damaged_step.ts';

/**
 * Reads what `WireWriter` writes, within a range of bytes. Accepts canonical bytes only: varints have their shortest
 * form, and text is UTF-8. All errors come from the last argument.
 */
export class WireReader {
  readonly #bytes: Buffer;
  readonly #faultOf: FaultOf;
  #at: number;
  #end: number;
  /** The halves of the varint that was read last, as int32. */
  #low = 0;
  #high = 0;

  constructor(bytes: Uint8Array, from: number, to: number, faultOf: FaultOf = damaged) {
    if (!(from >= 0 && from <= to && to <= bytes.length)) throw faultOf('the range is not within the bytes', from);
    this.#faultOf = faultOf;
    this.#bytes = Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#at = from;
    this.#end = to;
  }

  get at(): number {
    return this.#at;
  }

  /**
   * Consumes the tag if the next field has it, and returns whether it does. Must be called in order of field number, so
   * that `finish` finds fields that are unknown, repeated or out of order.
   */
  has(tag: number): boolean {
    if (this.#at >= this.#end || this.#bytes[this.#at] !== tag) return false;
    this.#at += 1;
    return true;
  }

  /** Consumes the tag, which the next field must have. */
  expect(tag: number): void {
    if (!this.has(tag)) throw this.#fault(`no field with the tag ${tag}`);
  }

  /** Must be called at the end of a message. */
  finish(): void {
    if (this.#at < this.#end) throw this.#fault(`unexpected tag ${this.#bytes[this.#at]}`);
  }

  /** Begins a nested message. Returns the end of the outer one, for `leave`. */
  enter(): number {
    const outer = this.#end;
    this.#end = this.#lengthEnd();
    return outer;
  }

  leave(outer: number): void {
    this.finish();
    this.#end = outer;
  }

  text(): string {
    const from = this.skip();
    const to = this.#at;
    if (to - from <= SHORT_TEXT && isAscii(this.#bytes, from, to)) return this.#bytes.toString('latin1', from, to);
    if (!isUtf8(this.#bytes.subarray(from, to))) throw this.#fault('text is not UTF-8');
    return this.#bytes.toString('utf8', from, to);
  }

  /** Returns a view, not a copy. */
  bytes(): Uint8Array {
    const from = this.skip();
    return new Uint8Array(this.#bytes.buffer, this.#bytes.byteOffset + from, this.#at - from);
  }

  /** Skips text, bytes or a nested message. Returns where its content begins; it ends at `at`. */
  skip(): number {
    const end = this.#lengthEnd();
    const from = this.#at;
    this.#at = end;
    return from;
  }

  /** A flag is written only if it is true. */
  flag(): true {
    if (!this.bool()) throw this.#fault('a flag is not 1');
    return true;
  }

  bool(): boolean {
    const byte = this.#byte();
    if (byte > 1) throw this.#fault('a flag is neither 0 nor 1');
    return byte === 1;
  }

  /** An integer from 0 to 2^53 - 1. */
  unsigned(): number {
    const value = this.signed();
    if (value < 0) throw this.#fault('a size is negative');
    return value;
  }

  /** An int64 from -(2^53 - 1) to 2^53 - 1. */
  signed(): number {
    this.#varint();
    const value = this.#high * 2 ** 32 + (this.#low >>> 0);
    if (!Number.isSafeInteger(value)) throw this.#fault('a number is too large');
    return value;
  }

  /** An int64. */
  long(): bigint {
    this.#varint();
    const [low, high] = [this.#low >>> 0, this.#high];
    return high >= 0 && high < 2 ** 21 ? BigInt(high * 2 ** 32 + low) : BigInt(high) * TWO_TO_32 + BigInt(low);
  }

  /** An int32. */
  int(): number {
    this.#varint();
    if (this.#high !== this.#low >> 31) throw this.#fault('a number has more than 32 bits');
    return this.#low;
  }

  double(): number {
    const from = this.#at;
    this.#move(8);
    return this.#bytes.readDoubleLE(from);
  }

  /** A packed list of int32. */
  packedInts(): number[] {
    const outer = this.enter();
    const values: number[] = [];
    while (this.#at < this.#end) values.push(this.int());
    this.leave(outer);
    return values;
  }

  /** Checks a packed list of int32. Returns its length. */
  skipPackedInts(): number {
    const outer = this.enter();
    let count = 0;
    for (; this.#at < this.#end; count += 1) this.int();
    this.leave(outer);
    return count;
  }

  /** A packed list of float. */
  packedFloats(): number[] {
    const end = this.#lengthEnd();
    const values: number[] = [];
    if ((end - this.#at) % 4 !== 0) throw this.#fault('a list of floats ends within a float');
    for (; this.#at < end; this.#at += 4) values.push(this.#bytes.readFloatLE(this.#at));
    return values;
  }

  #byte(): number {
    if (this.#at >= this.#end) throw this.#fault('a field is cut off');
    return this.#bytes[this.#at++]!;
  }

  #move(count: number): void {
    if (this.#end - this.#at < count) throw this.#fault('a field is cut off');
    this.#at += count;
  }

  /** Consumes the length of a value. Returns the end of the value. */
  #lengthEnd(): number {
    const length = this.unsigned();
    if (length > this.#end - this.#at) throw this.#fault('a field is cut off');
    return this.#at + length;
  }

  #varint(): void {
    let byte = this.#byte();
    this.#high = 0;
    this.#low = byte;
    if (byte < 0x80) return;
    let low = byte & 0x7f;
    let high = 0;
    let shift = 7;
    for (; shift < 70; shift += 7) {
      byte = this.#byte();
      const bits = byte & 0x7f;
      if (shift < 28) low |= bits << shift;
      else if (shift === 28) {
        low |= bits << 28;
        high = bits >> 4;
      } else high |= bits << (shift - 32);
      if (byte < 0x80) break;
    }
    if (byte === 0 || shift > 63 || (shift === 63 && byte !== 1)) throw this.#fault('a number is not canonical');
    this.#low = low;
    this.#high = high;
  }

  #fault(what: string): Error {
    return this.#faultOf(what, this.#at);
  }
}

/** Returns the error for a fault before byte `at`. */
type FaultOf = (fault: string, at: number) => Error;

function damaged(fault: string, at: number): DamagedStep {
  return new DamagedStep(`${fault}, before byte ${at}`);
}

const TWO_TO_32 = 2n ** 32n;
/** Native checks cost more than a look at so few bytes. */
const SHORT_TEXT = 256;

function isAscii(bytes: Buffer, from: number, to: number): boolean {
  for (let at = from; at < to; at += 1) if (bytes[at]! > 127) return false;
  return true;
}
