/** The numbers from `from` on, up to but not including `to`. */
export interface NumberRange {
  readonly from: bigint;
  readonly to: bigint;
}

/** Reading so many numbers that nobody asked for costs less than another statement. */
const GAP = 64n;
const LONGEST = 10_000n;

/**
 * A few ranges that hold all the numbers. A range of the primary key is read the same way by every planner, while a list of numbers is not: Postgres
 * before 17, without statistics of a fresh table, compares every row of a trajectory with every number.
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
