/**
 * Lineage arithmetic. The steps 0 to end of a trajectory are owned by its ancestors and itself, as half-open ranges
 * without gap. The parent of a branch is the owner of its branch point (B1), so every ancestor owns at least one step
 * of the lineage.
 */

import { AnabranchError } from './errors.ts';
import { LIMITS } from './limits.ts';

/** One trajectory in a chain of ancestors: its row key, and its branch point (undefined for the root). */
export interface Link {
  readonly key: bigint;
  readonly branchPoint: bigint | undefined;
}

/** The steps [from, to) of a lineage that trajectory `key` owns. */
export interface OwnedRange {
  readonly key: bigint;
  readonly from: bigint;
  readonly to: bigint;
}

/** A range of own steps of a trajectory in any tree. */
export interface TreeRange extends OwnedRange {
  readonly tree: bigint;
}

/** The owners of some steps of a trajectory, in order. */
export interface TreeLineage {
  readonly tree: bigint;
  readonly lineage: readonly OwnedRange[];
}

/**
 * Returns the ranges of a lineage from the root on. `chain` begins with the root and ends with the trajectory itself,
 * whose end is `end`.
 */
export function rangesOf(chain: readonly Link[], end: bigint): OwnedRange[] {
  return chain.map((link, i) => {
    const child = chain[i + 1];
    return { key: link.key, from: firstOwn(link), to: child === undefined ? end : firstOwn(child) };
  });
}

/**
 * Returns the part of the ranges within [from, to), without empty ranges. The cost depends on the result, not on
 * the depth of the lineage.
 */
export function clipRanges(ranges: readonly OwnedRange[], from: bigint, to: bigint): OwnedRange[] {
  if (to <= from) return [];
  const begin = partition(ranges.length, (i) => ranges[i]!.to <= from);
  const end = partition(ranges.length, (i) => ranges[i]!.from < to);
  const clipped = ranges.slice(begin, end);
  clipEnd(clipped, 0, from, to);
  clipEnd(clipped, clipped.length - 1, from, to);
  return clipped.at(-1)?.from === clipped.at(-1)?.to ? clipped.slice(0, -1) : clipped;
}

function clipEnd(ranges: OwnedRange[], at: number, from: bigint, to: bigint): void {
  const range = ranges[at];
  if (range === undefined) return;
  ranges[at] = {
    key: range.key,
    from: range.from > from ? range.from : from,
    to: range.to < to ? range.to : to,
  };
}

/** Returns the owner of a step, or undefined if the lineage does not contain the step. */
export function ownerOf(ranges: readonly OwnedRange[], stepNumber: bigint): bigint | undefined {
  const range = ranges[partition(ranges.length, (i) => ranges[i]!.to <= stepNumber)];
  return range !== undefined && range.from <= stepNumber ? range.key : undefined;
}

/** Returns the error for a branch that would be too deep (B1), or undefined. */
export function depthFault({ id, depth }: { readonly id: string; readonly depth: bigint }): AnabranchError | undefined {
  if (depth < BigInt(LIMITS.branchDepth)) return undefined;
  return new AnabranchError(
    'BRANCH_TOO_DEEP',
    `Trajectory ${id}, which owns the branch point, has depth ${depth}; a branch has at most depth ${LIMITS.branchDepth}. Branch at a step that a trajectory nearer to the root owns (GetLineage names the owners), or create a new root trajectory.`,
    { metadata: { trajectory_id: id, depth: `${depth}` } },
  );
}

/** Returns how many steps two lineages share: 0 if they are unrelated (RD5). */
export function sharedSteps(one: readonly OwnedRange[], other: readonly OwnedRange[]): bigint {
  // A trajectory has one chain of ancestors, so lineages are equal up to the last owner that they have in common.
  const common = partition(Math.min(one.length, other.length), (i) => one[i]!.key === other[i]!.key);
  const [a, b] = [one[common - 1], other[common - 1]];
  if (a === undefined || b === undefined) return 0n;
  return a.to < b.to ? a.to : b.to;
}

/** Returns how many indexes below `length` meet a condition that is true up to some index and false after it. */
function partition(length: number, holds: (index: number) => boolean): number {
  let [low, high] = [0, length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (holds(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

function firstOwn(link: Link): bigint {
  return link.branchPoint === undefined ? 0n : link.branchPoint + 1n;
}
