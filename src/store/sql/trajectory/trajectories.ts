import type { Caller } from '../../../domain/caller.ts';
import { trajectoryNotFound } from '../../../domain/errors.ts';
import type { Trajectory } from '../../../domain/trajectory.ts';
import type { IdempotencyKey } from '../../contract/idempotency.ts';
import type { Page } from '../../contract/page.ts';
import type { NewBranch, NewTrajectory, TrajectoryChanges, TrajectoryFilter } from '../../contract/trajectory.ts';
import { byId, visibleById } from '../by_id.ts';
import type { Engine } from '../engine.ts';
import { mergeMetrics } from '../metric/maps.ts';
import { makeOnce } from '../requests.ts';
import { type ReadScope, writeIn } from '../transaction.ts';
import { bindLabels, bindMetrics, bindTimeBound } from '../values.ts';
import { encodeInline, MADE_TRAJECTORIES, makeTrajectory } from './creation.ts';
import { findByKey, readTrajectory, selectTrajectories } from './rows.ts';

/** Creates a root or a branch. A known key returns the trajectory that it created. */
export async function createTrajectory(
  engine: Engine,
  caller: Caller,
  making: NewTrajectory | NewBranch,
  key: IdempotencyKey | undefined,
): Promise<Trajectory> {
  const inline = await encodeInline(making);
  return makeOnce(engine, caller, key, MADE_TRAJECTORIES, (tx) => makeTrajectory(tx, making, inline));
}

export async function listTrajectories(
  scope: ReadScope,
  filter: TrajectoryFilter,
  page: Page<bigint>,
): Promise<Trajectory[]> {
  if (filter.statuses?.length === 0) return [];
  let query = selectTrajectories(scope.db).where('t.namespace', '=', scope.namespace).where('t.hidden', '=', 0);
  if (filter.taskId !== undefined) query = query.where('t.task_id', '=', filter.taskId);
  if (filter.runId !== undefined) query = query.where('t.run', '=', keyOf(scope, 'runs', filter.runId));
  if (filter.experimentId !== undefined)
    query = query.where('t.experiment', '=', keyOf(scope, 'experiments', filter.experimentId));
  if (filter.name !== undefined) query = query.where('t.name', '=', filter.name);
  if (filter.statuses !== undefined) query = query.where('t.status', 'in', filter.statuses);
  if (filter.withoutRun === true) query = query.where('t.run', 'is', null);
  if (filter.rootsOnly === true) query = query.where('t.parent', 'is', null);
  if (filter.branchPoint !== undefined) query = query.where('t.branch_point', '=', filter.branchPoint);
  if (filter.createTimeFrom !== undefined)
    query = query.where('t.create_time', '>=', bindTimeBound(filter.createTimeFrom));
  if (filter.createTimeTo !== undefined) query = query.where('t.create_time', '<', bindTimeBound(filter.createTimeTo));
  for (const [key, value] of filter.labels ?? []) {
    query = query.where((eb) => scope.engine.hasPair(eb.ref('t.labels'), key, value));
  }
  const places = await Promise.all([findKeys(scope, filter.parentId), findKeys(scope, filter.treeId)]);
  const [parent, root] = places;
  if (parent === 'nowhere' || root === 'nowhere') return [];
  if (parent !== undefined) query = query.where('t.tree', '=', parent.tree).where('t.parent', '=', parent.key);
  if (root !== undefined) query = query.where('t.tree', '=', root.key);
  if (page.after !== undefined) query = query.where('t.key', '<', page.after);
  const rows = await query.orderBy('t.key', 'desc').limit(page.limit).execute();
  return rows.map(readTrajectory);
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

export async function listTree({ db, namespace }: ReadScope, tree: bigint, page: Page<bigint>): Promise<Trajectory[]> {
  let query = selectTrajectories(db)
    .where('t.tree', '=', tree)
    .where('t.namespace', '=', namespace)
    .where('t.purging', '=', 0);
  if (page.after !== undefined) query = query.where('t.key', '>', page.after);
  const rows = await query.orderBy('t.key').limit(page.limit).execute();
  return rows.map(readTrajectory);
}

export async function updateTrajectory(
  engine: Engine,
  namespace: string,
  id: string,
  changes: TrajectoryChanges,
): Promise<Trajectory> {
  return writeIn(engine, namespace, async (tx) => {
    const row = await engine
      .lock(visibleById(tx, 'trajectories', id).select(['tree', 'key', 'metrics']), 'write')
      .executeTakeFirst();
    if (row === undefined) throw trajectoryNotFound(id);
    await tx.db
      .updateTable('trajectories')
      .set({
        update_time: engine.now,
        ...(changes.name === undefined ? {} : { name: changes.name }),
        ...(changes.labels === undefined ? {} : { labels: bindLabels(changes.labels) }),
        ...(changes.metadataJson === undefined ? {} : { metadata_json: changes.metadataJson }),
        ...(changes.metrics === undefined ? {} : { metrics: bindMetrics(mergeMetrics(row.metrics, changes.metrics)) }),
      })
      .where('tree', '=', row.tree)
      .where('key', '=', row.key)
      .execute();
    const updated = await findByKey(tx, row.tree, row.key);
    if (updated === undefined) throw trajectoryNotFound(id);
    return updated;
  });
}
