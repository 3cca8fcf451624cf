import type { Digest } from '../../../../domain/ids.ts';

/** Minimum size in bytes of a state that is stored as a delta. */
export const DELTA_BYTES = 4096;

/** Deltas between a state and the state that is stored whole at the end of its chain. */
export const MOST_DELTAS = 32;

/** Bytes of all states that a reader decodes to restore one, including that one. */
export const MOST_CHAIN_BYTES = 4 * 1024 * 1024;

/** Deltas of one base. Bounds the work that is necessary before a base can be deleted. */
export const MOST_DEPENDENTS = 32;

/** Place of a stored state in a chain of deltas. A state that is stored whole has no base. */
export interface ChainPlace {
  /** The state whose bytes are the dictionary of this one. It is in the same namespace. */
  readonly base: Digest | undefined;
  /** At least the number of deltas from this state to the whole one. Smaller than stored after a base was rewritten. */
  readonly depth: number;
  /** At least the bytes of all bases, direct and indirect. */
  readonly baseBytes: number;
}

export const WHOLE: ChainPlace = { base: undefined, depth: 0, baseBytes: 0 };

/** Returns the place of a state after a base, or undefined if the chain would exceed its bounds. */
export function placeAfter(
  base: Pick<ChainPlace, 'depth' | 'baseBytes'> & { readonly digest: Digest; readonly size: number },
  size: number,
): ChainPlace | undefined {
  const depth = base.depth + 1;
  const baseBytes = base.baseBytes + base.size;
  return depth > MOST_DELTAS || baseBytes + size > MOST_CHAIN_BYTES
    ? undefined
    : { base: base.digest, depth, baseBytes };
}
