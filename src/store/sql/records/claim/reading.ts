import { sql } from 'kysely';
import type { StageKind } from '../../../../domain/run.ts';
import type { Trajectory } from '../../../../domain/trajectory.ts';
import type { Claim } from '../../../contract/rollout.ts';
import { inOneRoundTrip } from '../../kit/together.ts';
import type { NamespaceTransaction } from '../../kit/transaction.ts';
import { readTrajectory, selectTrajectories } from '../../log/trajectory/rows.ts';
import { readRollout, selectRollouts } from '../rollout/rows.ts';
import { readPlan } from '../run/rows.ts';
import type { ClaimedAttempt } from './keys.ts';
import { plannedTurns } from './stage_contexts.ts';
import { readTasks, taskOf } from './tasks.ts';

/** Q2: returns those of the earlier claims that are still live, in the order in which they were claimed. */
export async function readClaims(tx: NamespaceTransaction, granted: readonly ClaimedAttempt[]): Promise<Claim[]> {
  const rows = await selectRollouts(tx.engine, tx.db, 'FULL')
    .select(['r.task', 's.kind', 'u.plan', 't.tree as trajectory_tree', 't.key as trajectory_key'])
    .where('r.namespace', '=', tx.namespace)
    .where(
      tx.engine.among(
        sql.ref('r.key'),
        granted.map(([rollout]) => rollout),
      ),
    )
    .where('r.status', 'in', ['INITIALIZING', 'RUNNING'])
    .execute();
  const [tasks, trajectories] = await inOneRoundTrip([
    readTasks(tx, rows),
    readTrajectories(
      tx,
      rows.flatMap(({ trajectory_key }) => trajectory_key ?? []),
    ),
  ]);
  const byKey = new Map(rows.map((row) => [row.key, row]));
  return granted.flatMap(([key, attempt]): Claim[] => {
    const row = byKey.get(key);
    const trajectory = row === undefined ? undefined : trajectories.get(row.trajectory_key ?? -1n);
    // Without its trajectory, an attempt cannot be worked on.
    if (row === undefined || row.attempt !== attempt || trajectory === undefined) return [];
    const task = taskOf(row, tasks);
    const planned = plannedTurns(readPlan(row.plan), row.kind as StageKind);
    const maxTurns = row.max_turns ?? task?.maxTurns ?? planned;
    return [{ rollout: readRollout(row), task, trajectory, maxTurns }];
  });
}

async function readTrajectories(tx: NamespaceTransaction, keys: readonly bigint[]) {
  if (keys.length === 0) return new Map<bigint, Trajectory>();
  const rows = await selectTrajectories(tx.db)
    .where('t.namespace', '=', tx.namespace)
    .where(tx.engine.among(sql.ref('t.key'), keys))
    .where('t.hidden', '=', 0)
    .execute();
  return new Map(rows.map((row) => [row.key, readTrajectory(row)]));
}
