import { sql } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { trajectoryHint } from '../../../../domain/change.ts';
import { trajectoryNotFound } from '../../../../domain/errors.ts';
import type { Trajectory } from '../../../../domain/trajectory.ts';
import type { IdempotencyKey, Page } from '../../../contract/request.ts';
import type { NewBranch, NewTrajectory, TrajectoryChanges } from '../../../contract/trajectory.ts';
import { visibleById } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { mergeMetrics } from '../../kit/given_fields.ts';
import { makeOnce } from '../../kit/requests.ts';
import { type ReadScope, writeIn } from '../../kit/transaction.ts';
import { bindLabels, bindMetrics } from '../../kit/values.ts';
import type { StatesEngine } from '../engine.ts';
import { encodeInline, MADE_TRAJECTORIES, makeTrajectory } from './creation.ts';
import { findByKey, readTrajectory, selectTrajectories } from './rows.ts';

/** Creates a root or a branch. A known key returns the trajectory that it created. */
export async function createTrajectory(
  engine: StatesEngine,
  caller: Caller,
  making: NewTrajectory | NewBranch,
  key: IdempotencyKey | undefined,
): Promise<Trajectory> {
  const inline = await encodeInline(making);
  const made = await makeOnce(engine, caller, key, MADE_TRAJECTORIES, (tx) => makeTrajectory(tx, making, inline));
  if ('sourceId' in making) engine.changes.announce([trajectoryHint(made.ref.key)]);
  return made;
}

export async function listTree(
  { engine, db, namespace }: ReadScope,
  tree: bigint,
  page: Page<bigint>,
  keys?: readonly bigint[],
): Promise<Trajectory[]> {
  let query = selectTrajectories(db)
    .where('t.tree', '=', tree)
    .where('t.namespace', '=', namespace)
    .where('t.purging', '=', 0);
  if (keys !== undefined) query = query.where(engine.sql.among(sql.ref('t.key'), keys));
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
  const changed = await writeIn(engine, namespace, async (tx) => {
    const row = await engine.locks
      .rows(visibleById(tx, 'trajectories', id).select(['tree', 'key', 'metrics']), 'write')
      .executeTakeFirst();
    if (row === undefined) throw trajectoryNotFound(id);
    await tx.db
      .updateTable('trajectories')
      .set({
        update_time: engine.sql.now,
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
  engine.changes.announce([trajectoryHint(changed.ref.key)]);
  return changed;
}
