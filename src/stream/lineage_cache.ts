import { clipRanges, type Link, type OwnedRange, rangesOf } from '../domain/lineage.ts';
import { ownBegin, type Trajectory } from '../domain/trajectory.ts';
import type { Store } from '../store/contract/store.ts';

/** Maximum number of cached ranges: about 10 MB. */
const MOST_RANGES = 100_000;

/** Number of links converted before other work runs. */
const PIECE = 1000;

/**
 * Caches the ancestors of trajectories that were read recently, from the nearest to the farthest that was requested. A
 * chain of ancestors never changes and a row key is never reused (B1, B3), so an entry is valid for as long as its
 * trajectory exists.
 */
export interface LineageCache {
  /**
   * Returns the owners of the steps [from, to), at most up to `trajectory.nextStepNumber`. Reads only the ancestors
   * that these steps need.
   */
  within(store: Ancestors, namespace: string, trajectory: Trajectory, from: bigint, to: bigint): Promise<OwnedRange[]>;
  /**
   * Returns the owners of all steps, beginning with the root. The last range is the trajectory's own and may be
   * empty. Returns no ranges if the trajectory was deleted.
   */
  whole(store: Ancestors, namespace: string, trajectory: Trajectory): Promise<readonly OwnedRange[]>;
  forget(key: bigint): void;
  /** Must be called when the database was replaced: row keys can be used again then. */
  forgetAll(): void;
}

/** Reads ancestors that are not cached. */
type Ancestors = Pick<Store, 'getLineage'>;

export function createLineageCache(): LineageCache {
  // Ranges of ancestors, without the trajectory's own, least recently used first.
  let lineages = new Map<bigint, readonly OwnedRange[]>();
  let cached = 0;

  const forget = (key: bigint): void => {
    cached -= lineages.get(key)?.length ?? 0;
    lineages.delete(key);
  };

  const cache = (key: bigint, ancestors: readonly OwnedRange[]): void => {
    forget(key);
    lineages.set(key, ancestors);
    cached += ancestors.length;
    for (const oldest of lineages.keys()) {
      if (cached <= MOST_RANGES || oldest === key) break;
      forget(oldest);
    }
  };

  /** Returns the owners of step `from` and of all later steps; none if the trajectory was deleted. */
  const ownersFrom = async (
    store: Ancestors,
    namespace: string,
    trajectory: Trajectory,
    from: bigint,
  ): Promise<readonly OwnedRange[]> => {
    const { ref } = trajectory;
    const own = { key: ref.key, from: ownBegin(trajectory), to: trajectory.nextStepNumber };
    if (from >= own.from) return [own];
    const known = lineages.get(ref.key) ?? [];
    const [farthest] = known;
    if (farthest !== undefined && farthest.from <= from) {
      cache(ref.key, known);
      return known.concat(own);
    }
    const before = lineages;
    const chain = await store.getLineage(namespace, { ...ref, key: farthest?.key ?? ref.key }, from);
    if (chain.length === 0) return [];
    const ancestors = (await ancestorsOf(chain)).concat(known);
    if (lineages === before) cache(ref.key, ancestors);
    return ancestors.concat(own);
  };

  return {
    async within(store, namespace, trajectory, from, to) {
      return clipRanges(await ownersFrom(store, namespace, trajectory, from), from, to);
    },
    whole: (store, namespace, trajectory) => ownersFrom(store, namespace, trajectory, 0n),
    forget,
    forgetAll() {
      lineages = new Map();
      cached = 0;
    },
  };
}

/** Returns the ranges of all links but the last one. */
async function ancestorsOf(chain: readonly Link[]): Promise<OwnedRange[]> {
  const ranges: OwnedRange[] = [];
  for (let at = 0; at + 1 < chain.length; at += PIECE) {
    if (at > 0) await new Promise((resolve) => setImmediate(resolve));
    // Includes the next link, at which the last range of the piece ends.
    const piece = chain.slice(at, at + PIECE + 1);
    ranges.push(...rangesOf(piece, 0n).slice(0, -1));
  }
  return ranges;
}
