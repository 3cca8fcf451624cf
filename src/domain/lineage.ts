/**
 * Lineage arithmetic. A trajectory's steps 0..end are owned by its ancestors and itself, as half-open segments without gap. The parent of a
 * branch is the owner of its branch point (B1), so every ancestor owns at least one step of the lineage.
 */

/** One trajectory of a chain of ancestors: its row key, and where it left its parent (undefined for the root). */
export interface Link {
  readonly key: bigint;
  readonly branchPoint: bigint | undefined;
}

/** The steps [from, to) of a lineage that the trajectory `key` owns. */
export interface Segment {
  readonly key: bigint;
  readonly from: bigint;
  readonly to: bigint;
}

/** The segments of a lineage from the root on; `chain` runs from the root to the trajectory itself, which ends at `end`. */
export function segmentsOf(chain: readonly Link[], end: bigint): Segment[] {
  return chain.map((link, i) => {
    const child = chain[i + 1];
    return { key: link.key, from: firstOwn(link), to: child === undefined ? end : firstOwn(child) };
  });
}

/** The part of the segments that lies in [from, to), empty ones left out. */
export function clipSegments(segments: readonly Segment[], from: bigint, to: bigint): Segment[] {
  const clipped: Segment[] = [];
  for (const segment of segments) {
    const begin = segment.from > from ? segment.from : from;
    const end = segment.to < to ? segment.to : to;
    if (begin < end) clipped.push({ key: segment.key, from: begin, to: end });
  }
  return clipped;
}

/** The owner of a step; undefined where the lineage does not hold it. */
export function ownerOf(segments: readonly Segment[], stepNumber: bigint): bigint | undefined {
  return segments.find(({ from, to }) => from <= stepNumber && stepNumber < to)?.key;
}

/** How many steps two lineages share: 0 for unrelated ones (RD5). */
export function sharedSteps(one: readonly Segment[], other: readonly Segment[]): bigint {
  let shared = 0n;
  for (let i = 0; i < one.length && i < other.length; i += 1) {
    const a = one[i];
    const b = other[i];
    if (a === undefined || b === undefined || a.key !== b.key) break;
    shared = a.to < b.to ? a.to : b.to;
    if (a.to !== b.to) break;
  }
  return shared;
}

function firstOwn(link: Link): bigint {
  return link.branchPoint === undefined ? 0n : link.branchPoint + 1n;
}
