import { type RawBuilder, type Selectable, type SqlBool, sql, type Updateable } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { runHint } from '../../../../domain/change.ts';
import { stageNotFound } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { isTerminal, type StageVerb, type Status } from '../../../../domain/lifecycle.ts';
import { type StageEnd, stageEndOf } from '../../../../domain/progress.ts';
import type { Stage } from '../../../../domain/run.ts';
import type { Page, View } from '../../../contract/request.ts';
import type { MoveDetails } from '../../../contract/run.ts';
import type { NewStage, StageChanges, StageFilter } from '../../../contract/stage.ts';
import { findRunKeys, keepRun, keepRunOf } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { mergeMetrics } from '../../kit/given_fields.ts';
import { movedColumns, recordStatus, type StatusEntity, statusMove } from '../../kit/status/status_changes.ts';
import type { StagesTable } from '../../kit/tables.ts';
import {
  type CallerTransaction,
  type NamespaceTransaction,
  type ReadScope,
  scopeOf,
  writeAs,
  writeIn,
} from '../../kit/transaction.ts';
import { bindMetrics, changedColumns, readReal } from '../../kit/values.ts';
import type { StatesEngine } from '../../log/engine.ts';
import { readPlan } from '../run/rows.ts';
import { tallyRuns } from '../run/tallies.ts';
import { applyVerb, type Movable, type Move } from '../verbs.ts';
import { writeWatched } from '../watched_row.ts';
import { bindTimings, findStage, mergeTimings, readStage, selectStages } from './rows.ts';

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
  if (made.created) engine.changes.announce([runHint(made.stage.run.key)]);
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
  const number = sql`(select c.number from ${engine.sql.table('stages')} as c where c.key = ${after})`;
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
    await writeWatched(tx, 'stages', row.key, { ...columnsOf(row, changes), ...timeSubsteps(row, changes, now) });
    const after = await findStage(tx, { id });
    if (after === undefined) throw new Error('a stage locked in this transaction is missing');
    return after;
  });
  engine.changes.announce([runHint(stage.run.key)]);
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

export function moveStage(engine: StatesEngine, caller: Caller, id: string, move: StageMove): Promise<Stage> {
  return applyVerb(engine, caller, id, STAGES, move);
}

type StageMove = Move<'stage'>;

const STAGES: Movable<'stage', LockedStage, StageMove, Stage> = {
  noun: 'stage',
  lock: (tx, id, verb) => lockStage(tx, id, CLOSING.has(verb) ? 'delete' : 'write'),
  entityOf,
  rolloutsOf: ({ run, key }) => ({ run, stage: key }),
  /** A reopening of a RUNNING stage opens its closed queue. */
  async apply(tx, row, to, { verb, details }) {
    const opens = to === undefined && verb === 'reopen' && row.queue_close_time !== null;
    if (to === undefined && !opens) return [];
    await tx.readNow();
    if (to === undefined) await writeWatched(tx, 'stages', row.key, { queue_close_time: null });
    else await moveLocked(tx, row, to, details);
    return [runHint(row.run)];
  },
  read: (tx, { id }) => findStage(tx, { id }),
};

const CLOSING: ReadonlySet<StageVerb> = new Set(['complete', 'fail', 'cancel']);

/** Closes the queue of a stage if it is open. After the commit, no transaction creates a rollout in the stage. */
export async function closeQueue(engine: Engine, namespace: string, id: string): Promise<Stage> {
  const { stage, closed } = await writeIn(engine, namespace, async (tx) => {
    const row = await lockStage(tx, id, 'delete');
    const closes = row.queue_close_time === null;
    if (closes) {
      await writeWatched(tx, 'stages', row.key, { queue_close_time: await tx.readNow() });
    }
    const after = await findStage(tx, { id });
    if (after === undefined) throw new Error('a stage locked in this transaction is missing');
    return { stage: after, closed: closes };
  });
  if (closed) engine.changes.announce([runHint(stage.run.key)]);
  return stage;
}

/** The transaction has read the time. */
async function moveLocked(tx: CallerTransaction, row: LockedStage, to: Status, details: MoveDetails): Promise<void> {
  const { now } = tx;
  const begins = to === 'RUNNING';
  const readEnd = () => endOfStage(tx, row);
  // Progress counts only stages that are not terminal as open, so it is computed before the move.
  const end = to === 'FAILED' || to === 'CANCELLED' ? await readEnd() : undefined;
  await writeWatched(tx, 'stages', row.key, {
    ...movedColumns(row, to, details, now),
    end_expected_turns: end?.expectedTurns ?? null,
    end_expected_substeps: end?.expectedSubsteps ?? null,
    end_share: end?.share ?? null,
    queue_close_time: queueCloseTime(row, to, now),
    // No substep took the time in which the stage did not run.
    ...(begins && row.substeps_time !== null ? { substeps_time: now } : {}),
  });
  const share = to === 'COMPLETED' ? 1 : (end ?? (await readEnd())).share;
  const percent = share === undefined ? undefined : share * 100;
  await recordStatus(tx, entityOf(row), statusMove(row, to, details, percent));
}

/** A terminal stage has a closed queue, and a reopened stage an open one. */
function queueCloseTime({ status, queue_close_time }: LockedStage, to: Status, now: string): string | null {
  if (isTerminal(to)) return queue_close_time ?? now;
  return isTerminal(status as Status) ? null : queue_close_time;
}

function entityOf({ run, key }: LockedStage): StatusEntity {
  return { tree: run, noun: 'STAGE', key };
}

type LockedStage = Selectable<StagesTable>;

/**
 * Locks a stage for writing and its run against deletion. With `delete`, also waits for transactions that create
 * rollouts in the stage (`keepStage`), which closing the queue requires. Errors: STAGE_NOT_FOUND.
 */
async function lockStage(
  tx: NamespaceTransaction,
  id: string,
  lock: 'write' | 'delete' = 'write',
): Promise<LockedStage> {
  const seen = await findStage(tx, { id });
  if (seen === undefined || !(await keepRunOf(tx, seen))) throw stageNotFound(id);
  const row = await tx.engine.locks
    .rows(tx.db.selectFrom('stages').selectAll().where('key', '=', seen.key), lock)
    .executeTakeFirst();
  if (row === undefined) throw stageNotFound(id);
  return row;
}

/**
 * M2: measures substeps by the clock of the database, from the first report on. Substeps of a later report took the
 * time since the previous one. Substeps before the first report are not measured. A lower count restarts the
 * measurement.
 */
function timeSubsteps(row: LockedStage, changes: StageChanges, now: string): Updateable<StagesTable> {
  const { completedSubsteps } = changes;
  if (completedSubsteps === undefined && !('totalSubsteps' in changes)) return {};
  if (row.substeps_time === null) return { substeps_time: now };
  const rise = (completedSubsteps ?? row.completed_substeps) - row.completed_substeps;
  if (rise === 0n) return {};
  if (rise < 0n) return { substeps_time: now };
  const took = Number(parseInstant(now) - parseInstant(row.substeps_time)) / 1e9;
  return {
    substeps_time: now,
    timed_substeps: row.timed_substeps > MOST - rise ? MOST : row.timed_substeps + rise,
    // The clock may have been set back.
    substep_seconds: readReal(row.substep_seconds) + Math.max(0, took),
  };
}

/** Maximum of int64. */
const MOST = 2n ** 63n - 1n;

/** Returns what Progress expects of an open stage, as this transaction sees it, and the share that is done (M2). */
async function endOfStage(tx: NamespaceTransaction, { run, id }: Pick<LockedStage, 'run' | 'id'>): Promise<StageEnd> {
  const row = await tx.db.selectFrom('runs').select('plan').where('key', '=', run).executeTakeFirst();
  const tally = (await tallyRuns(tx, [run])).get(run);
  const stage = tally?.openStages.find((open) => open.id === id);
  if (row === undefined || tally === undefined || stage === undefined) {
    throw new Error('a stage that is open in this transaction was not counted');
  }
  return stageEndOf(stage, readPlan(row.plan), tally);
}
