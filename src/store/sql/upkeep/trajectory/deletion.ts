import { trajectoryHint } from '../../../../domain/change.ts';
import { AnabranchError, trajectoryNotFound } from '../../../../domain/errors.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Deletion, OnBranches } from '../../../contract/trajectory.ts';
import { visibleById } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { lockTrees, type Transaction, write, writeIn } from '../../kit/transaction.ts';
import { purgeTree } from './purge.ts';
import {
  lockTrajectory,
  type MarkedAncestors,
  type MarkedBranches,
  markBranches,
  markNeedlessAncestors,
  markPurging,
} from './purge_marks.ts';

/** Steps that one transaction of a deletion removes. */
const PURGED_STEPS = 250;

/**
 * B2: deletes a trajectory. The first transaction decides and marks the trajectory, so that no call finds it. Further
 * bounded transactions mark its branches and remove rows, and other work runs between them. If the call ends early,
 * `purgeDeleted` completes the deletion.
 */
export async function deleteTrajectory(
  engine: Engine,
  namespace: string,
  id: string,
  onBranches: OnBranches,
  check?: DeletionCheck,
): Promise<Deletion> {
  const { tree, key, keptShared, branches, ancestors } = await engine.transactions.giveWayAfter(async () => {
    const decided = await decide(engine, namespace, id, onBranches, check);
    engine.changes.announce([decided.key, ...decided.branches.marked].map(trajectoryHint));
    return decided;
  });
  if (keptShared) {
    await finish(engine, tree, [key]);
    return { purged: 0n, keptShared, keys: [key] };
  }
  const above = await markAncestors(engine, tree, ancestors);
  const keys = [key, ...(await markAllBranches(engine, tree, branches)), ...above.marked];
  const top = above.marked.at(-1) ?? key;
  await finish(engine, tree, above.parent === null ? [top] : [top, above.parent]);
  return { purged: BigInt(keys.length), keptShared, keys };
}

/** Result of the first transaction. */
interface Decision {
  readonly tree: bigint;
  readonly key: bigint;
  readonly keptShared: boolean;
  readonly branches: MarkedBranches;
  readonly ancestors: MarkedAncestors;
}

/** Throws if the trajectory must not be deleted. Runs in the first transaction, when the trajectory is locked. */
export type DeletionCheck = (tx: Transaction, ref: TrajectoryRef) => Promise<void>;

async function decide(
  engine: Engine,
  namespace: string,
  id: string,
  onBranches: OnBranches,
  check?: DeletionCheck,
): Promise<Decision> {
  return writeIn(engine, namespace, async (tx) => {
    const place = await visibleById(tx, 'trajectories', id).select(['tree', 'key']).executeTakeFirst();
    if (place === undefined) throw trajectoryNotFound(id);
    const { tree, key } = place;
    await lockTrees(tx, [tree]);
    const row = await lockTrajectory(tx, place, 'delete', 0);
    if (row === undefined) throw trajectoryNotFound(id);
    await check?.(tx, { tree, key });
    const living = onBranches === 'CASCADE' ? [] : await livingBranches(tx, tree, key);
    if (living.length > 0 && onBranches === 'REFUSE') throw await hasBranches(tx, tree, key, id, living);
    if (living.length > 0) {
      await markTrimming(tx, tree, key);
      return { tree, key, keptShared: true, branches: NO_BRANCHES, ancestors: NO_ANCESTORS };
    }
    await markPurging(tx, tree, [key]);
    const branches = onBranches === 'CASCADE' ? await markBranches(tx, tree, [key]) : NO_BRANCHES;
    const ancestors = await markNeedlessAncestors(tx, tree, row.parent);
    return { tree, key, keptShared: false, branches, ancestors };
  });
}

const NO_BRANCHES: MarkedBranches = { marked: [], parents: [] };
const NO_ANCESTORS: MarkedAncestors = { marked: [], parent: null, more: false };

function branchesOf(tx: Transaction, tree: bigint, key: bigint) {
  return tx.db.selectFrom('trajectories').where('tree', '=', tree).where('parent', '=', key).where('purging', '=', 0);
}

/** Returns ids of branches, including hidden ones, up to the number that an error lists. */
async function livingBranches(tx: Transaction, tree: bigint, key: bigint): Promise<string[]> {
  const rows = await branchesOf(tx, tree, key)
    .select('id')
    .orderBy('branch_point')
    .orderBy('key')
    .limit(LIMITS.namedBranches)
    .execute();
  return rows.map(({ id }) => id);
}

async function markTrimming(tx: Transaction, tree: bigint, key: bigint): Promise<void> {
  await tx.db
    .updateTable('trajectories')
    .set({ hidden: 1, trimming: 1, update_time: tx.engine.sql.now })
    .where('tree', '=', tree)
    .where('key', '=', key)
    .execute();
}

/** Runs a further transaction of the deletion, under the lock of the tree. */
function inTree<T>(engine: Engine, tree: bigint, work: (tx: Transaction) => Promise<T>): Promise<T> {
  return engine.transactions.giveWayAfter(() =>
    write(engine, async (tx) => {
      await lockTrees(tx, [tree]);
      return work(tx);
    }),
  );
}

/** B2: marks hidden ancestors that no trajectory needs. */
async function markAncestors(engine: Engine, tree: bigint, begun: MarkedAncestors): Promise<MarkedAncestors> {
  const marked = [...begun.marked];
  let { parent, more } = begun;
  while (more) {
    const from = parent;
    const found = await inTree(engine, tree, (tx) => markNeedlessAncestors(tx, tree, from));
    marked.push(...found.marked);
    ({ parent, more } = found);
  }
  return { marked, parent, more };
}

async function markAllBranches(engine: Engine, tree: bigint, begun: MarkedBranches): Promise<bigint[]> {
  const marked = [...begun.marked];
  let { parents } = begun;
  while (parents.length > 0) {
    const from = parents;
    const found = await inTree(engine, tree, (tx) => markBranches(tx, tree, from));
    engine.changes.announce(found.marked.map(trajectoryHint));
    marked.push(...found.marked);
    parents = found.parents;
  }
  return marked;
}

/** Purges the tree until none of these trajectories is marked. */
async function finish(engine: Engine, tree: bigint, keys: readonly bigint[]): Promise<void> {
  while (await engine.transactions.giveWayAfter(() => purgeTree(engine, tree, keys, PURGED_STEPS)));
}

async function hasBranches(
  tx: Transaction,
  tree: bigint,
  key: bigint,
  id: string,
  named: readonly string[],
): Promise<AnabranchError> {
  const count = await branchesOf(tx, tree, key)
    .select(({ fn }) => fn.countAll<bigint>().as('all'))
    .executeTakeFirst();
  const others = Number(count?.all ?? 0) - named.length;
  const more = others > 0 ? ` and ${others} more` : '';
  return new AnabranchError(
    'HAS_BRANCHES',
    `Trajectory ${id} has branches (${named.join(', ')}${more}). Delete them first, or set on_branches to CASCADE (delete them too) or KEEP_SHARED (keep them).`,
    { metadata: { branch_ids: named.join(',') } },
  );
}
