import type { Updateable } from 'kysely';
import { groupNotFound } from '../../../domain/errors.ts';
import type { Group } from '../../../domain/rollout.ts';
import type { BookView } from '../../contract/experiment.ts';
import type { GroupChanges, NewGroup } from '../../contract/group.ts';
import type { Page } from '../../contract/page.ts';
import type { Engine, Tx } from '../engine.ts';
import { mergeMetrics } from '../metric/maps.ts';
import { findStageKeys, keepStage } from '../stage/keys.ts';
import type { GroupsTable } from '../tables.ts';
import { readNow } from '../trajectory/rows.ts';
import { bindLabels, bindMetrics } from '../values.ts';
import { makeGroups } from './making.ts';
import { findGroup, readGroups, selectGroups } from './rows.ts';

/**
 * Returns a group and creates it if it is missing. Of concurrent callers, one creates it; the others wait for its row
 * and find it.
 */
export async function getOrCreateGroup(
  engine: Engine,
  namespace: string,
  making: NewGroup,
): Promise<{ readonly group: Group; readonly created: boolean }> {
  const { stageId, number } = making;
  const there = await findGroup(engine, engine.db, namespace, { stageId, number });
  if (there !== undefined) return { group: there, created: false };
  const made = await engine.write(async (tx) => {
    const stage = await keepStage(engine, tx, namespace, stageId);
    const now = await readNow(tx, engine.now);
    const groups = await makeGroups(engine, tx, namespace, stage, now, [making]);
    const ref = groups.get(number);
    const group = ref === undefined ? undefined : await findGroup(engine, tx, namespace, ref);
    if (ref === undefined || group === undefined) {
      throw new Error('the group created in this transaction is missing');
    }
    return { group, created: ref.created };
  });
  if (made.created) engine.announce([made.group.run.key]);
  return made;
}

export async function listGroups(
  engine: Engine,
  namespace: string,
  stageId: string,
  page: Page<bigint>,
  view: BookView,
): Promise<Group[]> {
  const stage = await findStageKeys(engine, engine.db, namespace, stageId);
  const { after = -1n, limit } = page;
  const query = engine.kept.page(`groups ${view}`, limit, [stage.key, namespace, after], (most, inStage, of, behind) =>
    selectGroups(engine.db, view)
      .where('g.stage', '=', inStage)
      .where('g.namespace', '=', of)
      .where('g.number', '>', behind)
      .orderBy('g.number')
      .limit(most),
  );
  const byIndex = engine.byIndex();
  return readGroups(byIndex, byIndex.db, query);
}

export async function updateGroup(
  engine: Engine,
  namespace: string,
  id: string,
  changes: GroupChanges,
): Promise<Group> {
  const group = await engine.write(async (tx) => {
    const row = await lockGroup(engine, tx, namespace, id);
    const now = await readNow(tx, engine.now);
    const mark = await engine.changeMark(tx);
    await tx
      .updateTable('groups')
      .set((eb) => ({ ...columnsOf(row.metrics, changes), update_time: now, mark, revision: eb('revision', '+', 1n) }))
      .where('key', '=', row.key)
      .execute();
    const after = await findGroup(engine, tx, namespace, row);
    if (after === undefined) throw groupNotFound(id);
    return after;
  });
  engine.announce([group.run.key]);
  return group;
}

/** Errors: GROUP_NOT_FOUND. */
async function lockGroup(engine: Engine, tx: Tx, namespace: string, id: string) {
  const query = tx
    .selectFrom('groups')
    .select(['key', 'metrics'])
    .where('namespace', '=', namespace)
    .where('id', '=', id);
  const row = await engine.lock(query, 'write').executeTakeFirst();
  if (row === undefined) throw groupNotFound(id);
  return row;
}

function columnsOf(stored: string, changes: GroupChanges): Updateable<GroupsTable> {
  const { onSuccess, labels, metrics, metadataJson } = changes;
  return {
    ...('batch' in changes ? { batch: changes.batch ?? null } : {}),
    ...(onSuccess === undefined ? {} : { on_success: onSuccess }),
    ...(labels === undefined ? {} : { labels: bindLabels(labels) }),
    ...(metrics === undefined ? {} : { metrics: bindMetrics(mergeMetrics(stored, metrics)) }),
    ...(metadataJson === undefined ? {} : { metadata_json: metadataJson }),
  };
}
