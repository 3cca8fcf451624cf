import { sql } from 'kysely';
import type { Pin } from '../../../../domain/retention.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Transaction } from '../../kit/transaction.ts';

/** What keeps a step from being pruned. */
export interface PinRules {
  readonly keepTagged: boolean;
  readonly keepBranchPoints: boolean;
}

/**
 * S14: returns which of these own steps of a trajectory are tagged, also by tags of branches (B5), or are branch
 * points. The trajectory is locked, so that no other transaction adds a tag or a branch until this one ends.
 */
export async function pinnedNow(
  tx: Transaction,
  ref: TrajectoryRef,
  numbers: readonly bigint[],
  { keepTagged, keepBranchPoints }: PinRules,
): Promise<ReadonlyMap<bigint, readonly Pin[]>> {
  const pinned = new Map<bigint, readonly Pin[]>();
  const note = (steps: readonly bigint[], pin: Pin) => {
    for (const step of steps) pinned.set(step, [...(pinned.get(step) ?? []), pin]);
  };
  if (keepTagged) note(await taggedOf(tx, ref, numbers), 'TAG');
  if (keepBranchPoints) note(await branchPointsOf(tx, ref, numbers), 'BRANCH');
  return pinned;
}

/** Goes from the tags of the tree up to the owners of the steps. */
async function taggedOf({ engine, db }: Transaction, { tree, key }: TrajectoryRef, numbers: readonly bigint[]) {
  const trajectories = engine.table('trajectories');
  const { rows } = await sql<{ step_number: bigint }>`with recursive up(key, parent, branch_point, step_number) as (
      select t.key, t.parent, t.branch_point, g.step_number
      from ${engine.table('tags')} as g cross join ${trajectories} as t
      where g.tree = ${tree} and ${engine.among(sql.ref('g.step_number'), numbers)}
        and t.tree = ${tree} and t.key = g.trajectory
      union
      select t.key, t.parent, t.branch_point, u.step_number from up as u cross join ${trajectories} as t
      where u.branch_point >= u.step_number and t.tree = ${tree} and t.key = u.parent)
    select distinct step_number from up
    where key = ${key} and (branch_point is null or branch_point < step_number)`.execute(db);
  return rows.map(({ step_number: step }) => step);
}

async function branchPointsOf({ engine, db }: Transaction, { tree, key }: TrajectoryRef, numbers: readonly bigint[]) {
  const rows = await db
    .selectFrom('trajectories')
    .select('branch_point')
    .distinct()
    .where('tree', '=', tree)
    .where('parent', '=', key)
    .where('purging', '=', 0)
    .where(engine.among(sql.ref('branch_point'), numbers))
    .execute();
  return rows.flatMap(({ branch_point: step }) => step ?? []);
}

/**
 * S14: whether an own step of a trajectory has a tag. With `below`, whether one of the trajectory or of those that
 * branch off has.
 */
export async function hasTags(
  { engine, db }: Transaction,
  { tree, key }: TrajectoryRef,
  { from, below }: { readonly from: bigint; readonly below: boolean },
): Promise<boolean> {
  const branches = sql`union all select t.key from going as b cross join ${engine.table('trajectories')} as t
    where t.tree = ${tree} and t.parent = b.key and not t.purging`;
  const { rows } = await sql`with recursive going(key) as (select cast(${key} as bigint) ${below ? branches : sql``})
    select 1 from going as b cross join ${engine.table('tags')} as g
    where g.tree = ${tree} and g.trajectory = b.key and g.step_number >= ${from} limit 1`.execute(db);
  return rows.length > 0;
}
