import { type RawBuilder, sql } from 'kysely';
import type { Db, Engine } from '../../kit/engine.ts';
import type { Transaction } from '../../kit/transaction.ts';

/** Bound on the trajectories that one transaction purges. */
const TRAJECTORIES = 100;

/** A trajectory that is marked for the purge. */
export interface Marked {
  readonly tree: bigint;
  readonly key: bigint;
}

interface Purging extends Marked {
  /** Number of own steps. */
  readonly steps: bigint;
}

/** Branches have higher keys than their parents, so trajectories with the highest keys have no branches. */
export async function findPurging(engine: Engine, db: Db, tree?: bigint): Promise<Purging[]> {
  const { rows } = await sql<Purging>`
    select t.tree, t.key, t.next_step_number - coalesce(t.branch_point + 1, 0) as steps
    from ${engine.table('trajectories')} as t where t.purging ${inTree(tree)}
    order by t.tree desc, t.key desc limit ${TRAJECTORIES}`.execute(db);
  return rows;
}

export async function findTrimming(engine: Engine, db: Db, tree?: bigint): Promise<Marked | undefined> {
  const { rows } = await sql<Marked>`
    select t.tree, t.key from ${engine.table('trajectories')} as t where t.trimming ${inTree(tree)}
    limit 1`.execute(db);
  return rows[0];
}

function inTree(tree: bigint | undefined): RawBuilder<unknown> {
  return tree === undefined ? sql`` : sql`and t.tree = ${tree}`;
}

export async function isAnyMarked(tx: Transaction, tree: bigint, keys: readonly bigint[]): Promise<boolean> {
  const row = await tx.db
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where('key', 'in', keys)
    .where((eb) => eb.or([eb('purging', '=', 1), eb('trimming', '=', 1)]))
    .limit(1)
    .executeTakeFirst();
  return row !== undefined;
}

/** Returns the first trajectories whose steps together fit the limit, at least one. */
export function fitting(found: readonly Purging[], limit: number): Purging[] {
  let steps = 0;
  return found.filter((each) => {
    const fits = steps === 0 || steps + Number(each.steps) <= limit;
    steps += Number(each.steps) + 1;
    return fits;
  });
}
