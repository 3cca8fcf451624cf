import { type RawBuilder, type SqlBool, sql, type Updateable } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { invalidField } from '../../../../domain/errors.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import type { Stage, TimeSpan } from '../../../../domain/run.ts';
import type { Page } from '../../../contract/page.ts';
import type { NewStage, StageChanges, StageFilter } from '../../../contract/stage.ts';
import type { View } from '../../../contract/view.ts';
import type { Engine } from '../../kit/engine.ts';
import { mergeMetrics } from '../../kit/metric_maps.ts';
import { findRunKeys, keepRun } from '../../kit/run_keys.ts';
import { recordStatus } from '../../kit/status/status_changes.ts';
import type { StagesTable } from '../../kit/tables.ts';
import { type CallerTransaction, type ReadScope, scopeOf, writeAs, writeIn } from '../../kit/transaction.ts';
import { bindMetrics, changedColumns } from '../../kit/values.ts';
import { bindTimings, findStage, readStage, readTimings, selectStages } from './rows.ts';
import { endOfStage, type LockedStage, lockStage, timeSubsteps, writeStage } from './writing.ts';

/**
 * Returns a stage and creates it if it is missing. Of concurrent callers, one creates it; the others wait for its row
 * and find it.
 */
export async function getOrCreateStage(
  engine: Engine,
  caller: Caller,
  newStage: NewStage,
): Promise<{ readonly stage: Stage; readonly created: boolean }> {
  const { namespace } = caller;
  const there = await findStage(scopeOf(engine, namespace), referenceOf(newStage));
  if (there !== undefined) return { stage: there, created: false };
  const made = await writeAs(engine, caller, async (tx) => {
    const run = await keepRun(tx, newStage.runId);
    const created = await insertStage(tx, run.key, newStage);
    const stage = await findStage(tx, referenceOf(newStage));
    if (stage === undefined) throw new Error('the stage created in this transaction is missing');
    return { stage, created };
  });
  if (made.created) engine.changes.announce([made.stage.run.key]);
  return made;
}

function referenceOf({ runId, kind, number }: NewStage) {
  return { runId, kind, number };
}

/** Returns false if the stage exists. */
async function insertStage(tx: CallerTransaction, run: bigint, newStage: NewStage): Promise<boolean> {
  const { engine, namespace } = tx;
  const { id, status, phase } = newStage;
  const now = await tx.readNow();
  const key = await engine.keys.next(tx.db, 'stages');
  const inserted = await tx.db
    .insertInto('stages')
    .values({
      key,
      namespace,
      id,
      run,
      kind: newStage.kind,
      number: newStage.number,
      batch: newStage.batch ?? null,
      status,
      status_message: '',
      phase,
      model_uri: newStage.modelUri,
      model_checkpoint_uri: '',
      metrics: '{}',
      metadata_json: newStage.metadataJson,
      completed_substeps: 0n,
      total_substeps: newStage.totalSubsteps ?? null,
      timings: '{}',
      timed_substeps: 0n,
      substep_seconds: 0,
      substeps_time: null,
      end_expected_turns: null,
      end_expected_substeps: null,
      end_share: null,
      queue_close_time: null,
      start_time: status === 'RUNNING' ? now : null,
      end_time: null,
      create_time: now,
      update_time: now,
      status_changes: 1n,
      revision: 1n,
      mark: await tx.readMark(),
    })
    .onConflict((conflict) => conflict.columns(['run', 'kind', 'number']).doNothing())
    .returning('key')
    .executeTakeFirst();
  if (inserted === undefined) return false;
  const { share } = await endOfStage(tx, { run, id });
  const progressPercent = share === undefined ? undefined : share * 100;
  const creation = { ordinal: 0n, from: null, to: status, message: '', phase, progressPercent };
  await recordStatus(tx, { tree: run, noun: 'STAGE', key }, creation);
  return true;
}

export async function listStages(
  scope: ReadScope,
  runId: string,
  filter: StageFilter,
  page: Page<bigint>,
  view: View,
): Promise<Stage[]> {
  const run = await findRunKeys(scope, runId);
  const { kinds, statuses, hasCheckpoint = false, byNumber = false, descending = false } = filter;
  if (kinds?.length === 0 || statuses?.length === 0) return [];
  let query = selectStages(scope.db, view).where('s.run', '=', run.key).where('s.namespace', '=', scope.namespace);
  if (kinds !== undefined) query = query.where('s.kind', 'in', kinds);
  if (statuses !== undefined) query = query.where('s.status', 'in', statuses);
  if (hasCheckpoint) query = query.where('s.model_checkpoint_uri', '<>', '');
  if (page.after !== undefined) query = query.where(followsStage(scope, page.after, { byNumber, descending }));
  const direction = descending ? 'desc' : 'asc';
  if (byNumber) query = query.orderBy('s.number', direction);
  const rows = await query.orderBy('s.key', direction).limit(page.limit).execute();
  return rows.map(readStage);
}

/** The number of a stage never changes, so the key of the last row is a cursor in both orders. */
function followsStage(
  { engine }: ReadScope,
  after: bigint,
  { byNumber, descending }: { readonly byNumber: boolean; readonly descending: boolean },
): RawBuilder<SqlBool> {
  const beyond = sql.raw(descending ? '<' : '>');
  const keyFollows = sql<SqlBool>`s.key ${beyond} ${after}`;
  if (!byNumber) return keyFollows;
  const number = sql`(select c.number from ${engine.table('stages')} as c where c.key = ${after})`;
  return sql<SqlBool>`(s.number ${beyond} ${number} or (s.number = ${number} and ${keyFollows}))`;
}

export async function updateStage(
  engine: Engine,
  namespace: string,
  id: string,
  changes: StageChanges,
): Promise<Stage> {
  const stage = await writeIn(engine, namespace, async (tx) => {
    const row = await lockStage(tx, id);
    const now = await tx.readNow();
    await writeStage(tx, row.key, { ...columnsOf(row, changes), ...timeSubsteps(row, changes, now) });
    const after = await findStage(tx, { id });
    if (after === undefined) throw new Error('a stage locked in this transaction is missing');
    return after;
  });
  engine.changes.announce([stage.run.key]);
  return stage;
}

function columnsOf(row: LockedStage, changes: StageChanges): Updateable<StagesTable> {
  const { metrics, timings } = changes;
  return changedColumns({
    batch: 'batch' in changes ? (changes.batch ?? null) : undefined,
    status_message: changes.statusMessage,
    phase: changes.phase,
    model_uri: changes.modelUri,
    model_checkpoint_uri: changes.modelCheckpointUri,
    metrics: metrics && bindMetrics(mergeMetrics(row.metrics, metrics)),
    metadata_json: changes.metadataJson,
    completed_substeps: changes.completedSubsteps,
    total_substeps: 'totalSubsteps' in changes ? (changes.totalSubsteps ?? null) : undefined,
    timings: timings && bindTimings(mergeTimings(row.timings, timings)),
  });
}

/** Merges timings by name; each replaces the stored one. Errors: INVALID_REQUEST (too many timings). */
export function mergeTimings(stored: string, changes: ReadonlyMap<string, TimeSpan>): Map<string, TimeSpan> {
  const merged = readTimings(stored);
  for (const [name, span] of changes) merged.set(name, span);
  if (merged.size > LIMITS.timings) {
    throw invalidField('timings', `would result in ${merged.size} timings, and the maximum is ${LIMITS.timings}`);
  }
  return merged;
}
