import { sql } from 'kysely';
import { type Segment, segmentsOf } from '../../domain/lineage.ts';
import type { Trajectory, TrajectoryRef } from '../../domain/trajectory.ts';
import type { Ancestor } from '../contract/trajectory.ts';
import type { Db, Tx } from './engine.ts';
import { isSet } from './values.ts';

/** The chain from the root to the trajectory, in one query inside its tree. */
export async function getLineage(db: Db | Tx, namespace: string, ref: TrajectoryRef): Promise<Ancestor[]> {
  const rows = await db
    .withRecursive('chain(key, parent, branch_point, id, name, hidden, depth)', (cte) =>
      cte
        .selectFrom('trajectories as t')
        .select(['t.key', 't.parent', 't.branch_point', 't.id', 't.name', 't.hidden', sql<bigint>`0`.as('depth')])
        .where('t.tree', '=', ref.tree)
        .where('t.key', '=', ref.key)
        .where('t.namespace', '=', namespace)
        .unionAll((eb) =>
          eb
            .selectFrom('trajectories as t')
            .innerJoin('chain as c', 'c.parent', 't.key')
            .select([
              't.key',
              't.parent',
              't.branch_point',
              't.id',
              't.name',
              't.hidden',
              sql<bigint>`c.depth + 1`.as('depth'),
            ])
            .where('t.tree', '=', ref.tree),
        ),
    )
    .selectFrom('chain')
    .select(['key', 'branch_point', 'id', 'name', 'hidden'])
    .orderBy('depth', 'desc')
    .execute();
  return rows.map((row) => ({
    key: row.key,
    branchPoint: row.branch_point ?? undefined,
    id: row.id,
    name: row.name,
    hidden: isSet(row.hidden),
  }));
}

export async function segmentsIn(db: Db | Tx, namespace: string, trajectory: Trajectory): Promise<Segment[]> {
  return segmentsOf(await getLineage(db, namespace, trajectory.ref), trajectory.nextStepNumber);
}
