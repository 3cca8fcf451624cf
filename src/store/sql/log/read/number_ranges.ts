/** Half-open range: [from, to). */
export interface NumberRange {
  readonly from: bigint;
  readonly to: bigint;
}

/** Reading this many unneeded rows costs less than another statement. */
const GAP = 64n;
const LONGEST = 10_000n;

/**
 * Returns a few ranges that cover all numbers. Both databases read a range of the primary key by the index. For a list
 * of numbers, Postgres before 17 without statistics compares each row of a trajectory with each of them.
 */
export function rangesOver(numbers: readonly bigint[]): NumberRange[] {
  const ranges: { from: bigint; to: bigint }[] = [];
  for (const number of BigInt64Array.from(numbers).sort()) {
    const last = ranges.at(-1);
    if (last !== undefined && number < last.to) continue;
    if (last !== undefined && number <= last.to + GAP && number < last.from + LONGEST) last.to = number + 1n;
    else ranges.push({ from: number, to: number + 1n });
  }
  return ranges;
}
