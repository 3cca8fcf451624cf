import { runHint } from '../../../../domain/change.ts';
import type { Sorted } from '../../../../domain/list_order.ts';
import { DEFAULT_HEARTBEAT_TIMEOUT_MS, type Run } from '../../../../domain/run.ts';
import type { Page, View } from '../../../contract/request.ts';
import type { RunChanges, RunFilter } from '../../../contract/run.ts';
import { visibleById } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { mergeMetrics } from '../../kit/given_fields.ts';
import { containsText, labelsAndTimes, listOrder } from '../../kit/list_order.ts';
import { type NamespaceTransaction, type ReadScope, writeIn } from '../../kit/transaction.ts';
import { againWhenRaced } from '../../kit/unique_violation.ts';
import { bindLabels, bindMetrics, changedColumns, flag } from '../../kit/values.ts';
import { experimentKey } from '../experiment/experiments.ts';
import { writeWatched } from '../watched_row.ts';
import { findNamed, runExists } from './create.ts';
import { heartbeatAt, type LockedRun, lockRun } from './moves.ts';
import { bindPlan, findRun, isStale, readRun, selectRuns } from './rows.ts';

const COLUMNS = {
  key: 'r.key',
  name: 'r.name',
  updateTime: 'r.update_time',
  reward: 'm.reward_sum',
  labels: 'r.labels',
};

export async function listRuns(scope: ReadScope, filter: RunFilter, page: Page<bigint> & Sorted, view: View) {
  const { engine } = scope;
  if (filter.statuses?.length === 0) return [];
  if (Object.keys(filter).length === 0 && page.sort === undefined) return listAllRuns(scope, page, view);
  let query = selectRuns(engine, scope.db, scope.namespace, view);
  if (filter.experiment !== undefined) {
    query = query.where('r.experiment', '=', await experimentKey(scope, filter.experiment));
  }
  if (filter.parentId !== undefined) {
    const parent = await runKey(scope, filter.parentId);
    if (parent === undefined) return [];
    query = query.where('r.parent', '=', parent);
  }
  if (filter.name !== undefined) query = query.where('r.name', '=', filter.name);
  if (filter.text !== undefined) query = query.where(containsText(engine, COLUMNS, filter.text));
  if (filter.statuses !== undefined) query = query.where('r.status', 'in', filter.statuses);
  if (filter.rootsOnly === true) query = query.where('r.parent', 'is', null);
  if (filter.staleOnly === true) query = query.where((eb) => isStale(engine, eb));
  for (const condition of labelsAndTimes(engine, 'r', filter)) query = query.where(condition);
  const { terms, follows } = listOrder(engine, COLUMNS, page);
  if (follows !== undefined) query = query.where(follows);
  return (await query.orderBy(terms).limit(page.limit).execute()).map(readRun);
}

/** The list without filters, which user interfaces poll, so its queries are cached. */
async function listAllRuns(
  { engine, db, namespace }: ReadScope,
  { after, limit }: Page<bigint>,
  view: View,
): Promise<Run[]> {
  const all = (of: string) => selectRuns(engine, db, of, view).orderBy('r.key', 'desc');
  const query =
    after === undefined
      ? engine.kept.page(`runs ${view}`, limit, [namespace], (most, of) => all(of).limit(most))
      : engine.kept.page(`runs after ${view}`, limit, [namespace, after], (most, of, before) =>
          all(of).where('r.key', '<', before).limit(most),
        );
  return (await db.executeQuery(query)).rows.map(readRun);
}

export async function listRunTrees(
  scope: ReadScope,
  experimentId: string,
  { after = 0n, limit }: Page<bigint>,
): Promise<Run[]> {
  const experiment = await experimentKey(scope, { id: experimentId });
  const query = selectRuns(scope.engine, scope.db, scope.namespace, 'BASIC')
    .where('r.experiment', '=', experiment)
    .where('r.key', '>', after);
  return (await query.orderBy('r.key').limit(limit).execute()).map(readRun);
}

/** Lists the runs of the tree that a run belongs to, in order of key. Returns undefined if there is no such run. */
export async function listRunTree(
  scope: ReadScope,
  runId: string,
  { after = 0n, limit }: Page<bigint>,
): Promise<Run[] | undefined> {
  const { engine, db, namespace } = scope;
  const query = engine.kept.page('run tree', limit, [namespace, runId, after], (most, of, id, behind) =>
    selectRuns(engine, db, of, 'BASIC')
      .where('r.tree', '=', visibleById({ ...scope, namespace: of }, 'runs', id).select('tree'))
      .where('r.key', '>', behind)
      .orderBy('r.key')
      .limit(most),
  );
  const { rows } = await db.executeQuery(query);
  // A deleted run must not look like the end of its tree.
  if (rows.length === 0 && (await runKey(scope, runId)) === undefined) return undefined;
  return rows.map(readRun);
}

async function runKey(scope: ReadScope, id: string): Promise<bigint | undefined> {
  return (await visibleById(scope, 'runs', id).select('key').executeTakeFirst())?.key;
}

export async function updateRun(engine: Engine, namespace: string, id: string, changes: RunChanges): Promise<Run> {
  const run = await againWhenRaced(() => writeIn(engine, namespace, (tx) => updateLocked(tx, id, changes)));
  engine.changes.announce([runHint(run.key)]);
  return run;
}

async function updateLocked(tx: NamespaceTransaction, id: string, changes: RunChanges): Promise<Run> {
  const row = await lockRun(tx, id);
  const { name } = changes;
  const taken = name === undefined || name === row.name ? undefined : await findNamed(tx, row.experiment, name);
  if (name !== undefined && taken !== undefined) throw runExists(name, taken.id);
  const now = await tx.readNow();
  await writeWatched(tx, 'runs', row.key, { ...columnsOf(row, changes), ...heartbeatColumns(row, changes, now) });
  const updated = await findRun(tx, row);
  if (updated === undefined) throw new Error('a run locked in this transaction is missing');
  return updated;
}

/** Returns the columns that the given fields are stored in. */
function columnsOf(row: LockedRun, changes: RunChanges) {
  const { labels, metrics } = changes;
  return changedColumns({
    name: changes.name,
    description: changes.description,
    labels: labels && bindLabels(labels),
    metadata_json: changes.metadataJson,
    plan: 'plan' in changes ? bindPlan(changes.plan) : undefined,
    status_message: changes.statusMessage,
    phase: changes.phase,
    metrics: metrics && bindMetrics(mergeMetrics(row.metrics, metrics)),
  });
}

/** The timeout runs from the last heartbeat. Setting `fail_when_stale` counts as a heartbeat if there was none. */
function heartbeatColumns(row: LockedRun, changes: RunChanges, now: string) {
  const { failWhenStale } = changes;
  const timeout =
    'heartbeatTimeoutMs' in changes
      ? (changes.heartbeatTimeoutMs ?? DEFAULT_HEARTBEAT_TIMEOUT_MS)
      : Number(row.heartbeat_timeout_ms);
  const from = row.heartbeat_time ?? (failWhenStale === true ? now : null);
  return {
    heartbeat_timeout_ms: timeout,
    ...(failWhenStale === undefined ? {} : { fail_when_stale: flag(failWhenStale) }),
    ...(from === null ? {} : heartbeatAt(from, timeout)),
  };
}
