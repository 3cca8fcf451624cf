import { sql } from 'kysely';
import type { Engine, Tx } from './engine.ts';

/** Trajectories that one transaction marks at most. */
const MARKS = 250;
/** Parents whose branches one statement looks for at most. */
const PARENTS = 250;

/** Marks trajectories as being purged: from then on no call finds them. The tree and the rows are locked. */
export async function markPurging(engine: Engine, tx: Tx, tree: bigint, keys: readonly bigint[]): Promise<void> {
  if (keys.length === 0) return;
  await tx
    .updateTable('trajectories')
    .set({ hidden: 1, purging: 1, trimming: 0, update_time: engine.now })
    .where('tree', '=', tree)
    .where(engine.among(sql.ref('key'), keys))
    .execute();
}

/** What a transaction marked, and where the next one continues. */
export interface MarkedBranches {
  readonly marked: readonly bigint[];
  /** Marked trajectories that may have branches which are not. Empty: all branches are marked. */
  readonly parents: readonly bigint[];
}

/**
 * Marks what branches off marked trajectories, level by level, at most `MARKS` of them. A branch is made under a lock of its parent's row, and marking
 * locks that row first. So a marked trajectory gets no further branches. The tree is locked.
 */
export async function markBranches(
  engine: Engine,
  tx: Tx,
  tree: bigint,
  parents: readonly bigint[],
): Promise<MarkedBranches> {
  const marked: bigint[] = [];
  const left = [...parents];
  while (left.length > 0 && marked.length < MARKS) {
    const some = left.slice(0, PARENTS);
    const limit = MARKS - marked.length;
    const branches = await lockUnmarkedBranches(engine, tx, tree, some, limit);
    await markPurging(engine, tx, tree, branches);
    marked.push(...branches);
    left.push(...branches);
    if (branches.length < limit) left.splice(0, some.length);
  }
  return { marked, parents: left };
}

/** Found by their parents first: in the order of keys, SQLite would look through the whole tree. */
async function lockUnmarkedBranches(
  engine: Engine,
  tx: Tx,
  tree: bigint,
  parents: readonly bigint[],
  limit: number,
): Promise<bigint[]> {
  const branches = tx
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where(engine.among(sql.ref('parent'), parents))
    .where('purging', '=', 0)
    .limit(limit);
  const query = tx
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where('key', 'in', branches)
    .orderBy('key');
  const rows = await engine.lock(query, 'delete').execute();
  return rows.map(({ key }) => key);
}

/** What a transaction marked, and the parent of the topmost of them. */
export interface MarkedAncestors {
  readonly marked: readonly bigint[];
  readonly parent: bigint | null;
  /** The bound was reached: the parent may have to be marked too. */
  readonly more: boolean;
}

/**
 * Marks hidden ancestors that no branch needs any more, from `key` upwards, at most `MARKS` of them. Branches that are being purged do not count. The tree
 * is locked.
 */
export async function markNeedlessAncestors(
  engine: Engine,
  tx: Tx,
  tree: bigint,
  key: bigint | null,
): Promise<MarkedAncestors> {
  const marked: bigint[] = [];
  let parent = key;
  while (parent !== null) {
    if (marked.length === MARKS) return { marked, parent, more: true };
    const row = await lockHidden(engine, tx, tree, parent);
    if (row === undefined || (await hasLivingBranch(tx, tree, parent))) break;
    await markPurging(engine, tx, tree, [parent]);
    marked.push(parent);
    parent = row.parent;
  }
  return { marked, parent, more: false };
}

/** Locks the row of a trajectory that is hidden and stays for its branches. */
async function lockHidden(engine: Engine, tx: Tx, tree: bigint, key: bigint) {
  const query = tx
    .selectFrom('trajectories')
    .select('parent')
    .where('tree', '=', tree)
    .where('key', '=', key)
    .where('hidden', '=', 1)
    .where('purging', '=', 0);
  return engine.lock(query, 'delete').executeTakeFirst();
}

async function hasLivingBranch(tx: Tx, tree: bigint, key: bigint): Promise<boolean> {
  const branch = await tx
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where('parent', '=', key)
    .where('purging', '=', 0)
    .limit(1)
    .executeTakeFirst();
  return branch !== undefined;
}
