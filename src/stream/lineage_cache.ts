import { clipSegments, type Link, type Segment, segmentsOf } from '../domain/lineage.ts';
import { ownBegin, type Trajectory } from '../domain/trajectory.ts';
import type { Store } from '../store/contract/store.ts';

/** Segments kept of all lineages together: some 10 MB. */
const MAX_SEGMENTS = 100_000;

/** Links that are turned into segments at a time: other work goes in between. */
const PIECE = 1000;

/**
 * The ancestors of trajectories read lately, from the nearest one up to the farthest that was asked for. A chain never
 * changes while its trajectory lives and a row key is never used again (B1, B3), so what is kept is right for as long
 * as its trajectory can be found.
 */
export interface LineageCache {
  /**
   * Who owns the steps [from, to) of the trajectory, up to the end that the given row knows. Reads no more ancestors
   * than that takes.
   */
  segments(store: Ancestors, namespace: string, trajectory: Trajectory, from: bigint, to: bigint): Promise<Segment[]>;
  /**
   * Who owns all steps, from the root on; the last segment is the trajectory's own and may be empty. Empty if the
   * trajectory was deleted.
   */
  whole(store: Ancestors, namespace: string, trajectory: Trajectory): Promise<readonly Segment[]>;
  forget(key: bigint): void;
}

/** Where ancestors are read that are not known yet: the store of the call that asks. */
type Ancestors = Pick<Store, 'getLineage'>;

export function createLineageCache(): LineageCache {
  // Segments of ancestors, the trajectory's own left out. In order of use: the first is the one used longest ago.
  const lineages = new Map<bigint, readonly Segment[]>();
  let kept = 0;

  const forget = (key: bigint): void => {
    kept -= lineages.get(key)?.length ?? 0;
    lineages.delete(key);
  };

  const keep = (key: bigint, ancestors: readonly Segment[]): void => {
    forget(key);
    lineages.set(key, ancestors);
    kept += ancestors.length;
    for (const oldest of lineages.keys()) {
      if (kept <= MAX_SEGMENTS || oldest === key) break;
      forget(oldest);
    }
  };

  /** All owners from that of the step `from` on; empty if the trajectory was deleted. */
  const ownersFrom = async (
    store: Ancestors,
    namespace: string,
    trajectory: Trajectory,
    from: bigint,
  ): Promise<readonly Segment[]> => {
    const { ref } = trajectory;
    const own = { key: ref.key, from: ownBegin(trajectory), to: trajectory.nextStepNumber };
    if (from >= own.from) return [own];
    const known = lineages.get(ref.key) ?? [];
    const [farthest] = known;
    if (farthest !== undefined && farthest.from <= from) {
      keep(ref.key, known);
      return known.concat(own);
    }
    const chain = await store.getLineage(namespace, { ...ref, key: farthest?.key ?? ref.key }, from);
    if (chain.length === 0) return [];
    const ancestors = (await ancestorsOf(chain)).concat(known);
    keep(ref.key, ancestors);
    return ancestors.concat(own);
  };

  return {
    async segments(store, namespace, trajectory, from, to) {
      return clipSegments(await ownersFrom(store, namespace, trajectory, from), from, to);
    },
    whole: (store, namespace, trajectory) => ownersFrom(store, namespace, trajectory, 0n),
    forget,
  };
}

/** The segments of a chain without its last link. */
async function ancestorsOf(chain: readonly Link[]): Promise<Segment[]> {
  const segments: Segment[] = [];
  for (let at = 0; at + 1 < chain.length; at += PIECE) {
    if (at > 0) await new Promise((resolve) => setImmediate(resolve));
    // One link more tells where the last segment of the piece ends.
    const piece = chain.slice(at, at + PIECE + 1);
    segments.push(...segmentsOf(piece, 0n).slice(0, -1));
  }
  return segments;
}
