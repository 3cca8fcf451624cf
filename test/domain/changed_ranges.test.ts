import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type ByteRange, ChangedRanges } from '../../src/domain/changed_ranges.ts';
import { LIMITS } from '../../src/domain/limits.ts';

const BLOCK = LIMITS.diffBlockBytes;

/** Compares in pieces of these sizes, as bytes arrive. */
function changedRanges(one: Uint8Array, other: Uint8Array, pieces: readonly number[] = []): ChangedRanges {
  const changed = new ChangedRanges();
  const common = Math.min(one.length, other.length);
  for (let at = 0, i = 0; at < common; i += 1) {
    const end = Math.min(common, at + (pieces[i % pieces.length] ?? common));
    changed.compare(at, one.subarray(at, end), other.subarray(at, end));
    at = end;
  }
  changed.addRest([one.length, other.length]);
  return changed;
}

/** What is expected, block by block. */
function naive(one: Uint8Array, other: Uint8Array): ByteRange[] {
  const ranges: { start: number; end: number }[] = [];
  const size = Math.max(one.length, other.length);
  for (let start = 0; start < size; start += BLOCK) {
    const end = Math.min(size, start + BLOCK);
    const isEqual = Buffer.from(one.subarray(start, end)).equals(other.subarray(start, end));
    const last = ranges.at(-1);
    if (isEqual) continue;
    if (last?.end === start) last.end = end;
    else ranges.push({ start, end });
  }
  return ranges;
}

const arbitraryBytes = fc.uint8Array({ max: 1, maxLength: 5 * BLOCK });
const arbitraryEdits = fc.array(fc.tuple(fc.nat(8 * BLOCK), fc.nat(1)), { maxLength: 4 });

describe('ChangedRanges', () => {
  it('S7: covers every difference, and no equal block, whatever the pieces', () => {
    const pieces = fc.array(fc.integer({ min: 1, max: 3 * BLOCK }), { minLength: 1, maxLength: 5 });
    fc.assert(
      fc.property(arbitraryBytes, arbitraryBytes, pieces, (one, other, sizes) => {
        expect(changedRanges(one, other, sizes).ranges).toEqual(naive(one, other));
      }),
    );
    fc.assert(
      fc.property(fc.nat(8 * BLOCK), fc.nat(8 * BLOCK), arbitraryEdits, pieces, (size, otherSize, edits, sizes) => {
        const [one, other] = [new Uint8Array(size), new Uint8Array(otherSize)];
        for (const [at, side] of edits) [one, other][side]![at] = 1;
        expect(changedRanges(one, other, sizes).ranges).toEqual(naive(one, other));
      }),
    );
  });

  it.each([
    ['nothing, and nothing', 0, 0, []],
    ['nothing, and a byte', 0, 1, [{ start: 0, end: 1 }]],
    ['a byte more than a block', 64, 65, [{ start: 64, end: 65 }]],
    ['a byte more within a block', 70, 71, [{ start: 64, end: 71 }]],
    ['blocks fewer', 1000, 100, [{ start: 64, end: 1000 }]],
  ])('S7: sizes differ: %s', (_, size, otherSize, ranges) => {
    expect(changedRanges(new Uint8Array(size), new Uint8Array(otherSize)).ranges).toEqual(ranges);
  });

  it('S7: lists at most 10,000 ranges, and says that there are more', () => {
    const size = 2 * BLOCK * LIMITS.diffRanges;
    const [one, other] = [new Uint8Array(size), new Uint8Array(size)];
    for (let i = 0; i < LIMITS.diffRanges; i += 1) other[2 * BLOCK * i] = 1;
    expect(changedRanges(one, other)).toMatchObject({ isTruncated: false, ranges: { length: LIMITS.diffRanges } });
    const longer = changedRanges(one, Buffer.concat([other, Uint8Array.of(0)]));
    expect(longer).toMatchObject({ isTruncated: true, ranges: { length: LIMITS.diffRanges } });
    expect(longer.ranges).toEqual(changedRanges(one, other).ranges);
  });
});
