import type { Group } from '../../../../domain/rollout.ts';
import type { GroupUpsert } from '../../../contract/group.ts';
import type { Page } from '../../../contract/page.ts';
import type { View } from '../../../contract/view.ts';
import type { Engine } from '../../kit/engine.ts';
import { mergeMetrics } from '../../kit/metric_maps.ts';
import { type NamespaceTransaction, type ReadScope, scopeOf, writeIn } from '../../kit/transaction.ts';
import { bindLabels, bindMetrics, changedColumns } from '../../kit/values.ts';
import { findStageKeys, keepStage } from '../stage/keys.ts';
import { getOrCreateGroups } from './create.ts';
import { findGroup, readGroups, selectGroups } from './rows.ts';

/**
 * Of concurrent callers, one creates the group; the others wait for its row and update it. A caller that changes
 * nothing takes no lock.
 */
export async function upsertGroup(
  engine: Engine,
  namespace: string,
  upsert: GroupUpsert,
): Promise<{ readonly group: Group; readonly created: boolean }> {
  const { stageId, number } = upsert;
  if (Object.keys(columnsOf('{}', upsert)).length === 0) {
    const there = await findGroup(scopeOf(engine, namespace), { stageId, number });
    if (there !== undefined) return { group: there, created: false };
  }
  const { group, created, changed } = await writeIn(engine, namespace, async (tx) => {
    const stage = await keepStage(tx, stageId);
    await tx.readNow();
    const ref = (await getOrCreateGroups(tx, stage, [upsert])).get(number);
    if (ref === undefined) throw new Error('the group that this transaction found or created is missing');
    const isChanged = ref.created || (await updateGroup(tx, ref.key, upsert));
    const after = await findGroup(tx, ref);
    if (after === undefined) throw new Error('a group of a run locked in this transaction is missing');
    return { group: after, created: ref.created, changed: isChanged };
  });
  if (changed) engine.changes.announce([group.run.key]);
  return { group, created };
}

/** Returns whether the row changed. */
async function updateGroup(tx: NamespaceTransaction, key: bigint, upsert: GroupUpsert): Promise<boolean> {
  const query = tx.db.selectFrom('groups').selectAll().where('key', '=', key);
  const row = await tx.engine.locks.rows(query, 'write').executeTakeFirstOrThrow();
  const columns = columnsOf(row.metrics, upsert);
  const differs = Object.entries(columns).some(([column, value]) => row[column as keyof typeof row] !== value);
  if (!differs) return false;
  const now = await tx.readNow();
  const mark = await tx.readMark();
  await tx.db
    .updateTable('groups')
    .set((eb) => ({ ...columns, update_time: now, mark, revision: eb('revision', '+', 1n) }))
    .where('key', '=', key)
    .execute();
  return true;
}

/** Returns the columns that the given fields are stored in. */
function columnsOf(stored: string, { batch, onSuccess, labels, metrics, metadataJson }: GroupUpsert) {
  return changedColumns({
    batch,
    on_success: onSuccess,
    labels: labels && bindLabels(labels),
    metrics: metrics?.size ? bindMetrics(mergeMetrics(stored, metrics)) : undefined,
    metadata_json: metadataJson,
  });
}

export async function listGroups(scope: ReadScope, stageId: string, page: Page<bigint>, view: View): Promise<Group[]> {
  const stage = await findStageKeys(scope, stageId);
  const { after = -1n, limit } = page;
  const query = scope.engine.kept.page(
    `groups ${view}`,
    limit,
    [stage.key, scope.namespace, after],
    (most, inStage, of, behind) =>
      selectGroups(scope.db, view)
        .where('g.stage', '=', inStage)
        .where('g.namespace', '=', of)
        .where('g.number', '>', behind)
        .orderBy('g.number')
        .limit(most),
  );
  const byIndex = scope.engine.byIndex();
  return readGroups(byIndex, byIndex.db, query);
}
