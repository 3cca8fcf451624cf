import { type RawBuilder, sql } from 'kysely';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Db, Engine, RowLock } from '../../kit/engine.ts';
import type { Transaction } from '../../kit/transaction.ts';

/** Bound on the trajectories that one transaction marks. */
const MARKS = 250;
/** Bound on the parents whose branches one statement selects. */
const PARENTS = 250;

/**
 * Marks trajectories for the purge, so that no call finds them. The caller holds the locks of the tree and the rows.
 */
export async function markPurging(tx: Transaction, tree: bigint, keys: readonly bigint[]): Promise<void> {
  if (keys.length === 0) return;
  await tx.db
    .updateTable('trajectories')
    .set({ hidden: 1, purging: 1, trimming: 0, update_time: tx.engine.sql.now })
    .where('tree', '=', tree)
    .where(tx.engine.sql.among(sql.ref('key'), keys))
    .execute();
}

/** Trajectories that a transaction marked, and where the next one continues. */
export interface MarkedBranches {
  readonly marked: readonly bigint[];
  /** Marked trajectories that may have unmarked branches. Empty if all branches are marked. */
  readonly parents: readonly bigint[];
}

/**
 * Marks branches of marked trajectories, level by level, at most `MARKS` of them. Creating a branch locks its parent's
 * row, and marking locks that row first, so a marked trajectory gets no further branches. The caller holds the lock of
 * the tree.
 */
export async function markBranches(tx: Transaction, tree: bigint, parents: readonly bigint[]): Promise<MarkedBranches> {
  const marked: bigint[] = [];
  const left = [...parents];
  while (left.length > 0 && marked.length < MARKS) {
    const some = left.slice(0, PARENTS);
    const limit = MARKS - marked.length;
    const branches = await lockUnmarkedBranches(tx, tree, some, limit);
    await markPurging(tx, tree, branches);
    marked.push(...branches);
    left.push(...branches);
    if (branches.length < limit) left.splice(0, some.length);
  }
  return { marked, parents: left };
}

/** The inner select finds branches by parent. With an order by key, SQLite would scan the whole tree. */
async function lockUnmarkedBranches(
  tx: Transaction,
  tree: bigint,
  parents: readonly bigint[],
  limit: number,
): Promise<bigint[]> {
  const branches = tx.db
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where(tx.engine.sql.among(sql.ref('parent'), parents))
    .where('purging', '=', 0)
    .limit(limit);
  const query = tx.db
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where('key', 'in', branches)
    .orderBy('key');
  const rows = await tx.engine.locks.rows(query, 'delete').execute();
  return rows.map(({ key }) => key);
}

/** Trajectories that a transaction marked, and the parent of the topmost one. */
export interface MarkedAncestors {
  readonly marked: readonly bigint[];
  readonly parent: bigint | null;
  /** Whether the bound was reached, so that the parent may have to be marked too. */
  readonly more: boolean;
}

/**
 * Marks hidden ancestors that no branch needs, from `key` upwards, at most `MARKS` of them. Branches that are being
 * purged do not count. The caller holds the lock of the tree.
 */
export async function markNeedlessAncestors(
  tx: Transaction,
  tree: bigint,
  key: bigint | null,
): Promise<MarkedAncestors> {
  const marked: bigint[] = [];
  let parent = key;
  while (parent !== null) {
    if (marked.length === MARKS) return { marked, parent, more: true };
    const row = await lockTrajectory(tx, { tree, key: parent }, 'delete', 1);
    if (row === undefined || (await hasLivingBranch(tx, tree, parent))) break;
    await markPurging(tx, tree, [parent]);
    marked.push(parent);
    parent = row.parent;
  }
  return { marked, parent, more: false };
}

/**
 * Locks the row of a trajectory, if it is hidden or visible as requested. Returns undefined if it was removed or is
 * being purged.
 */
export async function lockTrajectory(tx: Transaction, ref: TrajectoryRef, lock: RowLock, hidden?: 0 | 1) {
  const { tree, key } = ref;
  const query = tx.db
    .selectFrom('trajectories')
    .select(['parent', 'next_step_number', 'trimming'])
    .where((eb) => eb.and({ tree, key, purging: 0, ...(hidden === undefined ? {} : { hidden }) }));
  return tx.engine.locks.rows(query, lock).executeTakeFirst();
}

async function hasLivingBranch(tx: Transaction, tree: bigint, key: bigint): Promise<boolean> {
  const branch = await tx.db
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where('parent', '=', key)
    .where('purging', '=', 0)
    .limit(1)
    .executeTakeFirst();
  return branch !== undefined;
}

/** Bound on the trajectories that one transaction purges. */
const PURGED_AT_ONCE = 100;

/** A trajectory that is marked for the purge. */
interface Purging extends TrajectoryRef {
  /** Number of own steps. */
  readonly steps: bigint;
}

/** Branches have higher keys than their parents, so trajectories with the highest keys have no branches. */
export async function findPurging(engine: Engine, db: Db, tree?: bigint): Promise<Purging[]> {
  const { rows } = await sql<Purging>`
    select t.tree, t.key, t.next_step_number - coalesce(t.branch_point + 1, 0) as steps
    from ${engine.sql.table('trajectories')} as t where t.purging ${inTree(tree)}
    order by t.tree desc, t.key desc limit ${PURGED_AT_ONCE}`.execute(db);
  return rows;
}

export async function findTrimming(engine: Engine, db: Db, tree?: bigint): Promise<TrajectoryRef | undefined> {
  const { rows } = await sql<TrajectoryRef>`
    select t.tree, t.key from ${engine.sql.table('trajectories')} as t where t.trimming ${inTree(tree)}
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
