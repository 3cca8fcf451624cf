import { isUtf8 } from 'node:buffer';
import { DamagedStep } from './damaged_step.ts';

/**
 * Reads what `WireWriter` wrote, within a range of bytes. Accepts canonical bytes only: varints have their shortest
 * form, and text is UTF-8. All errors are DamagedStep.
 */
export class WireReader {
  readonly #bytes: Buffer;
  #at: number;
  #end: number;
  /** The halves of the varint that was read last, as int32. */
  #low = 0;
  #high = 0;

  constructor(bytes: Uint8Array, from: number, to: number) {
    if (!(from >= 0 && from <= to && to <= bytes.length)) throw new DamagedStep(`no bytes ${from} to ${to}`);
    this.#bytes = Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#at = from;
    this.#end = to;
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
    if (!this.has(tag)) throw this.#damaged(`no field with the tag ${tag}`);
  }

  /** Must be called at the end of a message. */
  finish(): void {
    if (this.#at < this.#end) throw this.#damaged(`unexpected tag ${this.#bytes[this.#at]}`);
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
    const end = this.#lengthEnd();
    const from = this.#at;
    this.#at = end;
    return isAscii(this.#bytes, from, end)
      ? this.#bytes.toString('latin1', from, end)
      : this.#decode(this.#bytes.subarray(from, end));
  }

  /** Returns a view, not a copy. */
  bytes(): Uint8Array {
    const end = this.#lengthEnd();
    const from = this.#at;
    this.#at = end;
    return new Uint8Array(this.#bytes.buffer, this.#bytes.byteOffset + from, end - from);
  }

  /** Skips text, bytes or a nested message. */
  skip(): void {
    this.#at = this.#lengthEnd();
  }

  /** A flag is written only if it is true. */
  flag(): true {
    if (this.#byte() !== 1) throw this.#damaged('a flag is not 1');
    return true;
  }

  /** An integer from 0 to 2^53 - 1. */
  unsigned(): number {
    const value = this.signed();
    if (value < 0) throw this.#damaged('a size is negative');
    return value;
  }

  /** An int64 from -(2^53 - 1) to 2^53 - 1. */
  signed(): number {
    this.#varint();
    const value = this.#high * 2 ** 32 + (this.#low >>> 0);
    if (!Number.isSafeInteger(value)) throw this.#damaged('a number is too large');
    return value;
  }

  /** An int64. */
  long(): bigint {
    this.#varint();
    const [low, high] = [this.#low >>> 0, this.#high];
    return high >= 0 && high < 2 ** 21 ? BigInt(high * 2 ** 32 + low) : BigInt(high) * TWO_TO_32 + BigInt(low);
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
    while (this.#at < this.#end) {
      this.#varint();
      if (this.#high !== this.#low >> 31) throw this.#damaged('a number has more than 32 bits');
      values.push(this.#low);
    }
    this.leave(outer);
    return values;
  }

  /** A packed list of float. */
  packedFloats(): number[] {
    const end = this.#lengthEnd();
    const values: number[] = [];
    if ((end - this.#at) % 4 !== 0) throw this.#damaged('a list of floats ends within a float');
    for (; this.#at < end; this.#at += 4) values.push(this.#bytes.readFloatLE(this.#at));
    return values;
  }

  #byte(): number {
    if (this.#at >= this.#end) throw this.#damaged('a field is cut off');
    return this.#bytes[this.#at++]!;
  }

  #move(count: number): void {
    if (this.#end - this.#at < count) throw this.#damaged('a field is cut off');
    this.#at += count;
  }

  /** Consumes the length of a value. Returns the end of the value. */
  #lengthEnd(): number {
    const length = this.unsigned();
    if (length > this.#end - this.#at) throw this.#damaged('a field is cut off');
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
    if (byte === 0 || shift > 63 || (shift === 63 && byte !== 1)) throw this.#damaged('a number is not canonical');
    this.#low = low;
    this.#high = high;
  }

  #decode(bytes: Buffer): string {
    if (!isUtf8(bytes)) throw this.#damaged('text is not UTF-8');
    return bytes.toString('utf8');
  }

  #damaged(fault: string): DamagedStep {
    return new DamagedStep(`${fault}, before byte ${this.#at}`);
  }
}

const TWO_TO_32 = 2n ** 32n;

function isAscii(bytes: Buffer, from: number, to: number): boolean {
  for (let at = from; at < to; at += 1) if (bytes[at]! > 127) return false;
  return true;
}
