import { LIMITS } from './limits.ts';

/** Bytes [start, end). */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}

/**
 * S7: collects the ranges in which two states differ at equal offsets, in blocks of 64 bytes. A range begins and ends
 * at a multiple of 64, or ends with the larger state. The states are compared piece by piece, in order.
 */
export class ChangedRanges {
  readonly #ranges: { start: number; end: number }[] = [];
  #isTruncated = false;

  get ranges(): readonly ByteRange[] {
    return this.#ranges;
  }

  /** True if there are more ranges than are kept. Then no more bytes need to be compared. */
  get isTruncated(): boolean {
    return this.#isTruncated;
  }

  /** Compares bytes of both states from `offset` on. Both must have the same length. */
  compare(offset: number, one: Uint8Array, other: Uint8Array): void {
    this.#compare(offset, bufferOf(one), bufferOf(other), 0, one.length);
  }

  /** Adds the bytes that only the larger state has. Must be called last. */
  addRest(sizes: readonly [number, number]): void {
    const [start, end] = [Math.min(...sizes), Math.max(...sizes)];
    if (start < end) this.#add(blockStart(start), end);
    const last = this.#ranges.at(-1);
    if (last !== undefined && last.end > end) last.end = end;
  }

  /** Halves ranges that differ, down to single blocks. */
  #compare(offset: number, one: Buffer, other: Buffer, from: number, to: number): void {
    if (this.#isTruncated || one.compare(other, from, to, from, to) === 0) return;
    const start = blockStart(offset + from);
    if (offset + to <= start + LIMITS.diffBlockBytes) {
      this.#add(start, start + LIMITS.diffBlockBytes);
      return;
    }
    const half = blockStart(offset + ((from + to) >> 1)) - offset;
    const middle = half > from ? half : start + LIMITS.diffBlockBytes - offset;
    this.#compare(offset, one, other, from, middle);
    this.#compare(offset, one, other, middle, to);
  }

  #add(start: number, end: number): void {
    const last = this.#ranges.at(-1);
    if (last !== undefined && start <= last.end) last.end = end;
    else if (this.#ranges.length < LIMITS.diffRanges) this.#ranges.push({ start, end });
    else this.#isTruncated = true;
  }
}

function blockStart(offset: number): number {
  return offset - (offset % LIMITS.diffBlockBytes);
}

function bufferOf({ buffer, byteOffset, length }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, length);
}
