import type { Digest } from '../../../../domain/ids.ts';
import { rangesOf } from '../../../../domain/lineage.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindDigest, readDigest } from '../../kit/values.ts';
import { getLineage } from '../trajectory/lineage.ts';
import type { ChainPlace } from './chain.ts';
import { restoreIfPossible } from './restore.ts';

/**
 * A state of which later ones may store the changes. Only assumed to be stored like this: `checkBases` compares it with
 * the locked row.
 */
export interface BaseState extends Pick<ChainPlace, 'depth' | 'baseBytes'> {
  readonly namespace: string;
  readonly digest: Digest;
  readonly size: number;
  /** Undefined if it was evicted from memory. */
  data: Uint8Array | undefined;
  dependents: number;
  /** Compressed size of this state or a similar one, as a share of its size. Undefined if none was compressed whole. */
  readonly wholeShare: number | undefined;
  /**
   * An earlier state of the chain. One state in many is stored as changes of it, and becomes the next anchor: so the
   * chain of a state is short, and whole states are rare. Undefined for a state that is an anchor itself.
   */
  readonly anchor: BaseState | undefined;
  /** States from the anchor to this one. */
  readonly sinceAnchor: number;
  /** A whole state that takes the place of this one, because this one can have no further dependents. */
  successor: BaseState | undefined;
  /** Resolves when the state that is being encoded after this one is encoded. */
  turn: Promise<unknown> | undefined;
}

/** Steps before a state that are searched for the last one of its name. */
const SEARCHED = 256n;

/**
 * Returns the latest state of this name before a step, unless it is far back. Looks at own steps, and at those of the
 * step's parent.
 */
export async function findLastState(
  scope: ReadScope,
  ref: TrajectoryRef,
  stepNumber: bigint,
  name: string,
): Promise<Digest | undefined> {
  const lineage = await getLineage(scope, ref, stepNumber - 1n);
  for (const { key, to } of rangesOf(lineage, stepNumber).reverse()) {
    const row = await scope.db
      .selectFrom('state_refs as r')
      .innerJoin('states as s', 's.key', 'r.state')
      .select('s.digest')
      .where('r.tree', '=', ref.tree)
      .where('r.trajectory', '=', key)
      .where('r.step_number', '<', to)
      .where('r.step_number', '>=', to - SEARCHED)
      .where('r.name', '=', name)
      .orderBy('r.step_number', 'desc')
      .limit(1)
      .executeTakeFirst();
    if (row !== undefined) return readDigest(row.digest);
  }
  return undefined;
}

/**
 * Selects the states that can be bases, with their numbers of dependents. One that was uploaded in chunks cannot,
 * though the same bytes may have come inline as well.
 */
export function selectBases(db: Db, namespace: string) {
  return db
    .selectFrom('states as s')
    .select(({ selectFrom, fn }) => [
      's.digest',
      's.size',
      's.depth',
      's.base_bytes',
      selectFrom('states as d')
        .select(fn.countAll<bigint>().as('n'))
        .whereRef('d.namespace', '=', 's.namespace')
        .whereRef('d.base', '=', 's.digest')
        .as('dependents'),
    ])
    .where('s.namespace', '=', namespace)
    .where('s.collected', '=', 0)
    .where('s.upload', 'is', null);
}

/** Reads a state as a base. Returns undefined if it cannot be one. */
export async function restoreBase(engine: Engine, namespace: string, digest: Digest): Promise<BaseState | undefined> {
  const row = await selectBases(engine.db, namespace).where('s.digest', '=', bindDigest(digest)).executeTakeFirst();
  if (row === undefined) return undefined;
  // A damaged state is no base, so that its trajectory can still be appended to.
  const data = await restoreIfPossible(engine, namespace, digest);
  if (data === undefined) return undefined;
  return {
    namespace,
    digest,
    size: Number(row.size),
    depth: Number(row.depth),
    baseBytes: Number(row.base_bytes),
    data,
    dependents: Number(row.dependents),
    wholeShare: undefined,
    anchor: undefined,
    sinceAnchor: 0,
    successor: undefined,
    turn: undefined,
  };
}
