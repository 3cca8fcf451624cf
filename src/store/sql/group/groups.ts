import type { Updateable } from 'kysely';
import { groupNotFound } from '../../../domain/errors.ts';
import type { Group } from '../../../domain/rollout.ts';
import type { GroupChanges, NewGroup } from '../../contract/group.ts';
import type { Page } from '../../contract/page.ts';
import type { View } from '../../contract/view.ts';
import { byId } from '../by_id.ts';
import type { Engine } from '../engine.ts';
import { mergeMetrics } from '../metric/maps.ts';
import { findStageKeys, keepStage } from '../stage/keys.ts';
import type { GroupsTable } from '../tables.ts';
import { type NamespaceTransaction, type ReadScope, scopeOf, writeIn } from '../transaction.ts';
import { bindLabels, bindMetrics, changedColumns } from '../values.ts';
import { getOrCreateGroups } from './create.ts';
import { findGroup, readGroups, selectGroups } from './rows.ts';

/**
 * Returns a group and creates it if it is missing. Of concurrent callers, one creates it; the others wait for its row
 * and find it.
 */
export async function getOrCreateGroup(
  engine: Engine,
  namespace: string,
  newGroup: NewGroup,
): Promise<{ readonly group: Group; readonly created: boolean }> {
  const { stageId, number } = newGroup;
  const there = await findGroup(scopeOf(engine, namespace), { stageId, number });
  if (there !== undefined) return { group: there, created: false };
  const made = await writeIn(engine, namespace, async (tx) => {
    const stage = await keepStage(tx, stageId);
    await tx.readNow();
    const groups = await getOrCreateGroups(tx, stage, [newGroup]);
    const ref = groups.get(number);
    const group = ref === undefined ? undefined : await findGroup(tx, ref);
    if (ref === undefined || group === undefined) {
      throw new Error('the group created in this transaction is missing');
    }
    return { group, created: ref.created };
  });
  if (made.created) engine.announce([made.group.run.key]);
  return made;
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

export async function updateGroup(
  engine: Engine,
  namespace: string,
  id: string,
  changes: GroupChanges,
): Promise<Group> {
  const group = await writeIn(engine, namespace, async (tx) => {
    const row = await lockGroup(tx, id);
    const now = await tx.readNow();
    const mark = await tx.readMark();
    await tx.db
      .updateTable('groups')
      .set((eb) => ({ ...columnsOf(row.metrics, changes), update_time: now, mark, revision: eb('revision', '+', 1n) }))
      .where('key', '=', row.key)
      .execute();
    const after = await findGroup(tx, row);
    if (after === undefined) throw groupNotFound(id);
    return after;
  });
  engine.announce([group.run.key]);
  return group;
}

/** Errors: GROUP_NOT_FOUND. */
async function lockGroup(tx: NamespaceTransaction, id: string) {
  const query = byId(tx, 'groups', id).select(['key', 'metrics']);
  const row = await tx.engine.lock(query, 'write').executeTakeFirst();
  if (row === undefined) throw groupNotFound(id);
  return row;
}

function columnsOf(stored: string, changes: GroupChanges): Updateable<GroupsTable> {
  const { labels, metrics } = changes;
  return changedColumns({
    batch: 'batch' in changes ? (changes.batch ?? null) : undefined,
    on_success: changes.onSuccess,
    labels: labels && bindLabels(labels),
    metrics: metrics && bindMetrics(mergeMetrics(stored, metrics)),
    metadata_json: changes.metadataJson,
  });
}
