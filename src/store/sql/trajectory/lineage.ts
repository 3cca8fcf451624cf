import { sql } from 'kysely';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { Ancestor, Owner } from '../../contract/trajectory.ts';
import { nextIteration } from '../reading/event_loop.ts';
import type { ReadScope } from '../transaction.ts';
import { isSet } from '../values.ts';

/** Ancestors per statement: a statement takes a few milliseconds, and other work runs between two of them. */
const PIECE = 1000;

/** Returns the chain from the owner of step `from` to the trajectory, read in batches from its end. */
export async function getLineage(scope: ReadScope, ref: TrajectoryRef, from = 0n): Promise<Ancestor[]> {
  const chain: Ancestor[] = [];
  let next: bigint | null = ref.key;
  while (next !== null) {
    if (chain.length > 0) await nextIteration();
    const rows = await readPiece(scope, { tree: ref.tree, key: next }, from);
    const last = rows.at(-1);
    // The trajectory was deleted, because ancestors exist as long as their branches.
    if (last === undefined) return [];
    for (const { key, branch_point, id, name, hidden } of rows) {
      chain.push({ key, branchPoint: branch_point ?? undefined, id, name, hidden: isSet(hidden) });
    }
    next = last.branch_point === null || last.branch_point < from ? null : last.parent;
  }
  return chain.reverse();
}

/**
 * Returns the owner of a step of the lineage; undefined if the trajectory does not exist. The step must be below its
 * end.
 */
export async function ownerIn(scope: ReadScope, ref: TrajectoryRef, stepNumber: bigint): Promise<bigint | undefined> {
  return (await getLineage(scope, ref, stepNumber))[0]?.key;
}

/**
 * Reads the trajectory and its ancestors, nearest first, up to the owner of step `from` or the size of a batch. The
 * join takes the tree from the chain. With a parameter, Postgres could underestimate the rows of the tree and scan them
 * all for each ancestor.
 */
function readPiece({ db, namespace }: ReadScope, { tree, key }: TrajectoryRef, from: bigint) {
  const columns = ['t.tree', 't.key', 't.parent', 't.branch_point', 't.id', 't.name', 't.hidden'] as const;
  return db
    .withRecursive('chain(tree, key, parent, branch_point, id, name, hidden, place)', (cte) =>
      cte
        .selectFrom('trajectories as t')
        .select([...columns, sql<bigint>`1`.as('place')])
        .where('t.tree', '=', tree)
        .where('t.key', '=', key)
        .where('t.namespace', '=', namespace)
        .unionAll((eb) =>
          eb
            .selectFrom('trajectories as t')
            .innerJoin('chain as c', (join) => join.onRef('c.tree', '=', 't.tree').onRef('c.parent', '=', 't.key'))
            .select([...columns, sql<bigint>`c.place + 1`.as('place')])
            .where('c.branch_point', '>=', from)
            .where('c.place', '<', sql<bigint>`${sql.lit(PIECE)}`),
        ),
    )
    .selectFrom('chain')
    .select(['key', 'parent', 'branch_point', 'id', 'name', 'hidden'])
    .orderBy('place')
    .execute();
}

/** Returns trajectories of a tree by key. Omits those that do not exist or are being purged. */
export async function getOwners(
  { engine, db, namespace }: ReadScope,
  tree: bigint,
  keys: readonly bigint[],
): Promise<Map<bigint, Owner>> {
  const rows = await db
    .selectFrom('trajectories as t')
    .select(['t.key', 't.id', 't.name', 't.hidden'])
    .where('t.tree', '=', tree)
    .where('t.namespace', '=', namespace)
    .where('t.purging', '=', 0)
    .where(engine.among(sql.ref('t.key'), keys))
    .execute();
  return new Map(rows.map(({ key, id, name, hidden }) => [key, { id, name, hidden: isSet(hidden) }]));
}
