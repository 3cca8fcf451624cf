import { sql } from 'kysely';
import type { Link, TreeRange } from '../../../../domain/lineage.ts';
import type { Trajectory, TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Ancestor, Owner } from '../../../contract/trajectory.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import { rangeTable } from './range_table.ts';

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

/** Ancestors of a trajectory that `findAncestors` reads. */
const NEAR = 64;

interface AncestorRow {
  readonly key: bigint;
  readonly parent: bigint | null;
  readonly branch_point: bigint | null;
}

/**
 * Returns a function that returns the chain of a trajectory, from the root to the trajectory itself. One statement
 * reads the ancestors of all. The chain is undefined if the trajectory has many ancestors, or was deleted.
 */
export async function findAncestors(
  { engine, namespace }: ReadScope,
  trajectories: readonly Pick<Trajectory, 'ref' | 'parent'>[],
): Promise<(of: Pick<Trajectory, 'ref' | 'parent'>) => readonly Link[] | undefined> {
  const parents = new Map<bigint, TreeRange>();
  for (const { ref, parent } of trajectories) {
    if (parent !== undefined) parents.set(parent.key, { tree: ref.tree, key: parent.key, from: 0n, to: 0n });
  }
  const links = new Map<bigint, AncestorRow>();
  if (parents.size > 0) {
    const table = engine.sql.table('trajectories');
    const { rows } = await sql<AncestorRow>`with recursive ${rangeTable(engine, [...parents.values()])},
      chain(tree, key, parent, branch_point, place) as (
        select t.tree, t.key, t.parent, t.branch_point, 1 from g cross join ${table} as t
        where t.tree = g.tree and t.key = g.key and t.namespace = ${namespace}
        union
        select t.tree, t.key, t.parent, t.branch_point, c.place + 1 from chain as c cross join ${table} as t
        where t.tree = c.tree and t.key = c.parent and c.place < ${sql.lit(NEAR)})
      select distinct key, parent, branch_point from chain`.execute(engine.db);
    for (const row of rows) links.set(row.key, row);
  }
  return ({ ref, parent }) => {
    const chain: Link[] = [{ key: ref.key, branchPoint: parent?.branchPoint }];
    for (let next = parent?.key ?? null; next !== null; ) {
      const link = links.get(next);
      if (link === undefined) return undefined;
      chain.push({ key: link.key, branchPoint: link.branch_point ?? undefined });
      next = link.parent;
    }
    return chain.reverse();
  };
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
    .where(engine.sql.among(sql.ref('t.key'), keys))
    .execute();
  return new Map(rows.map(({ key, id, name, hidden }) => [key, { id, name, hidden: isSet(hidden) }]));
}
