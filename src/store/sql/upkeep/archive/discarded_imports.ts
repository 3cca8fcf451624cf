import type { Digest } from '../../../../domain/ids.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Engine } from '../../kit/engine.ts';
import { lockTrees, write } from '../../kit/transaction.ts';
import { readDigest } from '../../kit/values.ts';
import type { StatesEngine } from '../../log/engine.ts';
import { findStates } from '../../log/states/states.ts';
import { purgeTree } from '../trajectory/purge.ts';
import { lockTrajectory, markNeedlessAncestors, markPurging } from '../trajectory/purge_marks.ts';

/** Rows that one transaction removes. */
const PURGED = 250;

/** Hours without progress after which an import is abandoned. */
const GIVEN_UP_HOURS = 24;

/**
 * Removes what an interrupted import has stored of a trajectory. Returns false if it is no such trajectory, or if
 * imported branches need it.
 */
export async function discardImport(engine: Engine, ref: TrajectoryRef): Promise<boolean> {
  if (!(await markDiscarded(engine, ref, false))) return false;
  while (await engine.transactions.giveWayAfter(() => purgeTree(engine, ref.tree, [ref.key], PURGED)));
  return true;
}

/** Marks the trajectory for the purge. Its import then ends with IMPORT_SUPERSEDED. */
function markDiscarded(engine: Engine, { tree, key }: TrajectoryRef, withAncestors: boolean): Promise<boolean> {
  return write(engine, async (tx) => {
    await lockTrees(tx, [tree]);
    const row = await lockTrajectory(tx, { tree, key }, 'delete');
    const { numDeletedRows } = await tx.db
      .deleteFrom('trajectory_imports')
      .where('tree', '=', tree)
      .where('trajectory', '=', key)
      .executeTakeFirst();
    if (numDeletedRows === 0n) return false;
    const branch = tx.db.selectFrom('trajectories').select('key').where('tree', '=', tree).where('parent', '=', key);
    if ((await branch.where('purging', '=', 0).limit(1).executeTakeFirst()) !== undefined) return false;
    await markPurging(tx, tree, [key]);
    // A repeated import continues with the ancestors.
    if (withAncestors) await markNeedlessAncestors(tx, tree, row?.parent ?? null);
    return true;
  });
}

/** Removes what imports that were given up have stored. Returns how many trajectories it looked at. */
export async function discardGivenUp(engine: Engine, limit: number): Promise<number> {
  const found = await engine.db
    .selectFrom('trajectory_imports')
    .select(['tree', 'trajectory as key'])
    .where('renew_time', '<', engine.sql.hoursAgo(GIVEN_UP_HOURS))
    .orderBy('trajectory', 'desc')
    .limit(limit)
    .execute();
  for (const ref of found) await markDiscarded(engine, ref, true);
  return found.length;
}

/** Steps whose states one statement reads. A step has at most 256 states. */
const STEPS = 256n;

/** States that one transaction renews. */
const RENEWED = 500;

/**
 * Keeps the states of a trajectory for a day after its deletion (S2): a trajectory that an archive leaves out has
 * brought states that later trajectories of the archive may name. `end` is the number after its last step.
 */
export async function renewStatesOf(
  engine: StatesEngine,
  namespace: string,
  { tree, key }: TrajectoryRef,
  begin: bigint,
  end: bigint,
): Promise<void> {
  let digests = new Set<Digest>();
  const renew = async () => {
    await findStates(engine, namespace, [...digests], true);
    digests = new Set();
  };
  for (let from = begin; from < end; from += STEPS) {
    const rows = await engine.db
      .selectFrom('state_refs as r')
      .innerJoin('states as s', 's.key', 'r.state')
      .select('s.digest')
      .where('r.tree', '=', tree)
      .where('r.trajectory', '=', key)
      .where('r.step_number', '>=', from)
      .where('r.step_number', '<', from + STEPS)
      .execute();
    for (const { digest } of rows) {
      digests.add(readDigest(digest));
      if (digests.size === RENEWED) await renew();
    }
  }
  await renew();
}
