import type { Link, Segment } from '../domain/lineage.ts';
import { segmentsOf } from '../domain/lineage.ts';
import type { Trajectory } from '../domain/trajectory.ts';
import type { Store } from '../store/contract/store.ts';

/** Links kept in all chains together: some 10 MB. */
const MAX_LINKS = 100_000;

/**
 * The chains of ancestors of trajectories read lately. A chain never changes while its trajectory lives and a row key is never used again (B1,
 * B3), so a kept chain is right for as long as its trajectory can be found.
 */
export interface LineageCache {
  /** Who owns which of the trajectory's steps, up to the end that the given row knows. */
  segments(namespace: string, trajectory: Trajectory): Promise<Segment[]>;
  forget(key: bigint): void;
}

export function createLineageCache(store: Pick<Store, 'getLineage'>): LineageCache {
  // In order of use: the first is the one used longest ago.
  const chains = new Map<bigint, readonly Link[]>();
  let links = 0;

  const forget = (key: bigint): void => {
    links -= chains.get(key)?.length ?? 0;
    chains.delete(key);
  };

  const keep = (key: bigint, chain: readonly Link[]): void => {
    forget(key);
    chains.set(key, chain);
    links += chain.length;
    for (const oldest of chains.keys()) {
      if (links <= MAX_LINKS || oldest === key) break;
      forget(oldest);
    }
  };

  return {
    async segments(namespace, trajectory) {
      const { key } = trajectory.ref;
      const end = trajectory.nextStepNumber;
      if (trajectory.parent === undefined) return [{ key, from: 0n, to: end }];
      const known = chains.get(key);
      const chain = known ?? (await store.getLineage(namespace, trajectory.ref)).map(linkOf);
      keep(key, chain);
      return segmentsOf(chain, end);
    },
    forget,
  };
}

function linkOf({ key, branchPoint }: Link): Link {
  return { key, branchPoint };
}
