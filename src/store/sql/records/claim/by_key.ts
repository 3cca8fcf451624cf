import { type RawBuilder, sql } from 'kysely';
import type { Transaction } from '../../kit/transaction.ts';
import type { QueuedRow } from './queue.ts';
import { groupIdOf, taskIdOf } from './queue.ts';

/**
 * Takes at most `limit` of the rollouts for which the condition (on `r`) holds, in the order of the queue, each locked
 * for writing. Skips rollouts that other transactions hold (Q4). `is true` prevents planners from using an index for
 * the condition in place of the keys.
 */
export async function lockByKey(
  { engine, db }: Transaction,
  keys: readonly bigint[],
  limit: number = keys.length,
  condition: RawBuilder<unknown> = sql`true`,
): Promise<QueuedRow[]> {
  const query = db
    .selectFrom('rollouts as r')
    .selectAll('r')
    .select([groupIdOf(engine).as('group_id'), taskIdOf(engine).as('task_id')])
    .where(engine.among(sql.ref('r.key'), keys))
    .where(sql<boolean>`(${condition}) is true`)
    .orderBy('r.priority', 'desc')
    .orderBy('r.key')
    .limit(limit);
  const rows = await engine.locks.freeRows(query, 'write').execute();
  if (rows.length === 0) return [];
  const next = await engine.keys.nextMany(db, 'trajectories', rows.length);
  return rows.map((row, i) => ({ ...row, next_trajectory: next[i]! }));
}
