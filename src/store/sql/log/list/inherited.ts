import { sql } from 'kysely';
import type { TreeRange } from '../../../../domain/lineage.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { type Belonging, belongs } from './list_conditions.ts';

/** Steps that trajectories of a task, a run or an experiment inherit from a trajectory that is not listed with them. */
export interface InheritedRange extends TreeRange {
  /** Id of one of those trajectories, with all of these steps in its lineage. */
  readonly heir: string;
}

type InheritedRow = [tree: number, key: number, from: number, to: number, heir: string];

/**
 * Returns the inherited ranges, one for each owner. A chain ends at a trajectory that is listed itself: what that one
 * inherits, its own chain has.
 */
export async function inheritedRanges(scope: ReadScope, of: Belonging): Promise<InheritedRange[]> {
  const { engine, namespace } = scope;
  const trajectories = engine.sql.table('trajectories');
  const rows = await engine.reads.rows<InheritedRow>(sql`
    with recursive chain(tree, key, hi, heir) as (
      select o.tree, o.parent, o.branch_point + 1, cast(o.id as text) from ${trajectories} as o
      where ${belongs(scope, of)} and o.parent is not null
      union all
      select t.tree, t.parent, t.branch_point + 1, c.heir from chain as c cross join ${trajectories} as t
      where t.tree = c.tree and t.key = c.key and t.namespace = ${namespace} and t.parent is not null
        and not (${belongs(scope, of, 't')}))
    select c.tree, c.key, coalesce(t.branch_point + 1, 0), c.hi, c.heir from chain as c cross join ${trajectories} as t
    where t.tree = c.tree and t.key = c.key and t.namespace = ${namespace} and not (${belongs(scope, of, 't')})`);
  const ranges = new Map<number, InheritedRange>();
  for (const [tree, key, from, to, heir] of rows) {
    const known = ranges.get(key);
    if (known !== undefined && known.to >= BigInt(to)) continue;
    ranges.set(key, { tree: BigInt(tree), key: BigInt(key), from: BigInt(from), to: BigInt(to), heir });
  }
  return [...ranges.values()];
}
