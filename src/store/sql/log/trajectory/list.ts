import { type SelectQueryBuilder, sql } from 'kysely';
import type { Sorted } from '../../../../domain/list_order.ts';
import type { Trajectory } from '../../../../domain/trajectory.ts';
import type { Page } from '../../../contract/request.ts';
import type { SizedTrajectory, TrajectoryFilter } from '../../../contract/trajectory.ts';
import { byId } from '../../kit/by_id.ts';
import { padded } from '../../kit/kept_queries.ts';
import { containsText, listOrder } from '../../kit/list_order.ts';
import type { Tables, TrajectoriesTable } from '../../kit/tables.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindTimeBound } from '../../kit/values.ts';
import { readTrajectory, selectTrajectories } from './rows.ts';

export async function listTrajectories(
  scope: ReadScope,
  filter: TrajectoryFilter,
  page: Page<bigint> & Sorted,
): Promise<Trajectory[]> {
  let query = await matching(scope, selectTrajectories(scope.db), filter);
  if (query === undefined) return [];
  const { terms, follows } = listOrder(scope.engine, COLUMNS, page);
  if (follows !== undefined) query = query.where(follows);
  const rows = await query.orderBy(terms).limit(page.limit).execute();
  return rows.map(readTrajectory);
}

const COLUMNS = {
  key: 't.key',
  name: 't.name',
  updateTime: 't.update_time',
  reward: 't.reward_sum',
  labels: 't.labels',
};

/** Returns visible trajectories with the bytes of their steps, in any order. */
export async function findTrajectories(
  { engine, db, namespace }: ReadScope,
  which: { readonly keys: readonly bigint[] } | { readonly ids: readonly string[] },
): Promise<SizedTrajectory[]> {
  let query = selectTrajectories(db)
    .select((eb) => [
      eb
        .selectFrom('segments as s')
        .select('s.byte_sum')
        .whereRef('s.tree', '=', 't.tree')
        .whereRef('s.trajectory', '=', 't.key')
        .orderBy('s.first_step_number')
        .limit(1)
        .as('inherited_bytes'),
    ])
    .where('t.namespace', '=', namespace)
    .where('t.hidden', '=', 0);
  if ('ids' in which) {
    if (which.ids.length === 0) return [];
    query = query.where('t.id', 'in', padded(which.ids));
  } else query = query.where(engine.sql.among(sql.ref('t.key'), which.keys));
  const rows = await query.execute();
  return rows.map((row) => ({
    trajectory: readTrajectory(row),
    stepBytes: Number(row.byte_sum),
    ownBytes: Number(row.byte_sum - (row.inherited_bytes ?? row.byte_sum)),
  }));
}

/** Whether the sum of rewards is NaN, as 0 or 1. SQLite stores the text 'NaN'; both engines would sort it last. */
export const IS_NAN = sql<number>`case when t.reward_sum = 'NaN' then 1 else 0 end`;

type Query<Row> = SelectQueryBuilder<{ t: TrajectoriesTable } & Tables, 't', Row>;

/**
 * Adds the conditions of a filter, without those of `stepLabels` and `shard`. Returns undefined if nothing can match.
 */
export async function matching<Row>(
  scope: ReadScope,
  from: Query<Row>,
  filter: TrajectoryFilter,
): Promise<Query<Row> | undefined> {
  if (filter.statuses?.length === 0) return undefined;
  let query = from.where('t.namespace', '=', scope.namespace).where('t.hidden', '=', 0);
  if (filter.ids !== undefined) query = query.where('t.id', 'in', padded(filter.ids));
  if (filter.newest !== undefined) query = query.where('t.key', '<=', filter.newest);
  if (filter.taskId !== undefined) query = query.where('t.task_id', '=', filter.taskId);
  if (filter.runId !== undefined) query = query.where('t.run', '=', keyOf(scope, 'runs', filter.runId));
  if (filter.experimentId !== undefined)
    query = query.where('t.experiment', '=', keyOf(scope, 'experiments', filter.experimentId));
  if (filter.name !== undefined) query = query.where('t.name', '=', filter.name);
  if (filter.text !== undefined) query = query.where(containsText(scope.engine, COLUMNS, filter.text));
  if (filter.statuses !== undefined) query = query.where('t.status', 'in', filter.statuses);
  if (filter.withoutRun === true) query = query.where('t.run', 'is', null);
  if (filter.rootsOnly === true) query = query.where('t.parent', 'is', null);
  if (filter.branchPoint !== undefined) query = query.where('t.branch_point', '=', filter.branchPoint);
  if (filter.createTimeFrom !== undefined)
    query = query.where('t.create_time', '>=', bindTimeBound(filter.createTimeFrom));
  if (filter.createTimeTo !== undefined) query = query.where('t.create_time', '<', bindTimeBound(filter.createTimeTo));
  if (filter.minLength !== undefined) query = query.where('t.next_step_number', '>=', filter.minLength);
  if (filter.maxLength !== undefined) query = query.where('t.next_step_number', '<=', filter.maxLength);
  if (filter.minRewardSum !== undefined) query = query.where('t.reward_sum', '>=', filter.minRewardSum);
  if (filter.maxRewardSum !== undefined) query = query.where('t.reward_sum', '<=', filter.maxRewardSum);
  if (filter.minRewardSum !== undefined || filter.maxRewardSum !== undefined) query = query.where(IS_NAN, '=', 0);
  for (const [key, value] of filter.labels ?? []) {
    query = query.where((eb) => scope.engine.sql.hasPair(eb.ref('t.labels'), key, value));
  }
  const places = await Promise.all([findKeys(scope, filter.parentId), findKeys(scope, filter.treeId)]);
  const [parent, root] = places;
  if (parent === 'nowhere' || root === 'nowhere') return undefined;
  if (parent !== undefined) query = query.where('t.tree', '=', parent.tree).where('t.parent', '=', parent.key);
  if (root !== undefined) query = query.where('t.tree', '=', root.key);
  return query;
}

function keyOf(scope: ReadScope, table: 'runs' | 'experiments', id: string) {
  return byId<'runs' | 'experiments'>(scope, table, id).select('key');
}

/**
 * Returns the keys of a trajectory by its id. Hidden ones are included, because their branches exist, but not those
 * that are being purged.
 */
async function findKeys(
  scope: ReadScope,
  id: string | undefined,
): Promise<{ tree: bigint; key: bigint } | 'nowhere' | undefined> {
  if (id === undefined) return undefined;
  const row = await byId(scope, 'trajectories', id).select(['tree', 'key']).where('purging', '=', 0).executeTakeFirst();
  return row ?? 'nowhere';
}
