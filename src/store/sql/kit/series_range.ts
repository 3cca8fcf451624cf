/** Range of metric steps, both ends included. */
export interface SeriesRange {
  readonly from: bigint;
  readonly to: bigint;
}

/**
 * Divides the steps from `first` to `last` into at most `count` ranges of equal length. The last one may be shorter.
 */
export function splitRange(first: bigint, last: bigint, count: number): SeriesRange[] {
  const span = last - first + 1n;
  const length = (span + BigInt(count) - 1n) / BigInt(count);
  const ranges: SeriesRange[] = [];
  for (let from = first; from <= last; from += length) {
    const to = from + length - 1n;
    ranges.push({ from, to: to < last ? to : last });
  }
  return ranges;
}
