import type { CompiledQuery } from 'kysely';
import { invalidField, stageNotFound } from '../../../../domain/errors.ts';
import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import type { Status } from '../../../../domain/lifecycle.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import type { Stage, StageKind, TimeSpan } from '../../../../domain/run.ts';
import type { View } from '../../../contract/request.ts';
import type { StageReference } from '../../../contract/stage.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { STAGES } from '../../kit/tables/runs.ts';
import { columnsIn } from '../../kit/tables/selection.ts';
import type { NamespaceTransaction, ReadScope } from '../../kit/transaction.ts';
import { readMetrics, readOptionalTime } from '../../kit/values.ts';

type StageRow = Awaited<ReturnType<ReturnType<typeof selectStages>['execute']>>[number];

/** Selects stages (`s`) of visible runs, with the ids of the runs (`r`). */
export function selectStages(db: Db, view: View) {
  return db
    .selectFrom('stages as s')
    .innerJoin('runs as r', (join) => join.onRef('r.key', '=', 's.run').on('r.hidden', '=', 0))
    .select(columnsIn(STAGES, 's', view, UNREAD))
    .select('r.id as run_id');
}

/** Columns that `readStage` does not need. */
const UNREAD = [
  'namespace',
  'timed_substeps',
  'substep_seconds',
  'substeps_time',
  'end_expected_turns',
  'end_expected_substeps',
  'end_share',
  'status_changes',
  'mark',
] as const;

/** Returns a stage in FULL view, or undefined. */
export async function findStage(
  { engine, db, namespace }: ReadScope,
  reference: StageReference,
): Promise<Stage | undefined> {
  const [row] = (await db.executeQuery(oneStage(engine, namespace, reference))).rows;
  return row === undefined ? undefined : readStage(row);
}

function oneStage({ kept, db }: Engine, namespace: string, reference: StageReference): CompiledQuery<StageRow> {
  const all = (of: string) => selectStages(db, 'FULL').where('s.namespace', '=', of);
  if ('id' in reference) {
    return kept.byKey('stage by id', [namespace, reference.id], (of, id) => all(of).where('s.id', '=', id));
  }
  const { runId, kind, number } = reference;
  return kept.byKey('stage by number', [namespace, runId, kind, number], (of, run, ofKind, own) =>
    all(of)
      .where('r.namespace', '=', of)
      .where('r.id', '=', run)
      .where('s.kind', '=', ofKind)
      .where('s.number', '=', own),
  );
}

export function readStage(row: StageRow): Stage {
  return {
    key: row.key,
    id: row.id,
    run: { key: row.run, id: row.run_id },
    kind: row.kind as StageKind,
    number: row.number,
    batch: row.batch ?? undefined,
    status: row.status as Status,
    statusMessage: row.status_message,
    phase: row.phase,
    modelUri: row.model_uri,
    modelCheckpointUri: row.model_checkpoint_uri,
    metrics: readMetrics(row.metrics),
    metadataJson: row.metadata_json,
    completedSubsteps: row.completed_substeps,
    totalSubsteps: row.total_substeps ?? undefined,
    timings: readTimings(row.timings),
    queueCloseTime: readOptionalTime(row.queue_close_time),
    startTime: readOptionalTime(row.start_time),
    endTime: readOptionalTime(row.end_time),
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
    revision: row.revision,
  };
}

/** Encodes timings as a JSON object with sorted keys. Each value is a pair of times; unknown times are null. */
export function bindTimings(timings: ReadonlyMap<string, TimeSpan>): string {
  const entries = [...timings].sort(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify(
    Object.fromEntries(
      entries.map(([name, { startTime, endTime }]) => [name, [bindTime(startTime), bindTime(endTime)]]),
    ),
  );
}

export function readTimings(text: string): Map<string, TimeSpan> {
  const entries = Object.entries(JSON.parse(text) as Record<string, [string | null, string | null]>);
  return new Map(
    entries.map(([name, [start, end]]) => [
      name,
      { startTime: readOptionalTime(start), endTime: readOptionalTime(end) },
    ]),
  );
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

function bindTime(time: bigint | undefined): string | null {
  return time === undefined ? null : formatInstant(time);
}

/** Row keys of a stage and of its run. */
export interface StageKeys {
  readonly key: bigint;
  readonly run: bigint;
}

/** Errors: STAGE_NOT_FOUND. */
export async function findStageKeys({ engine, db, namespace }: ReadScope, id: string): Promise<StageKeys> {
  const query = engine.kept.byKey('keys of stage', [namespace, id], (of, own) => selectStageKeys(db, of, own));
  const [row] = (await db.executeQuery(query)).rows;
  if (row === undefined) throw stageNotFound(id);
  return row;
}

/** A stage that is locked against deletion and closing. */
export interface KeptStage extends StageKeys {
  readonly id: string;
  readonly isQueueOpen: boolean;
  /** Read without a lock, as for claims (Q4). */
  readonly status: string;
  readonly runStatus: string;
}

/**
 * Locks a stage and its run against deletion (B4), and the queue against closing, until the transaction ends. Other
 * verbs are not blocked. Errors: STAGE_NOT_FOUND.
 */
export async function keepStage(tx: NamespaceTransaction, id: string): Promise<KeptStage> {
  const query = selectStageKeys(tx.db, tx.namespace, id).select([
    's.queue_close_time',
    's.status',
    'r.status as run_status',
  ]);
  const row = await tx.engine.locks.rows(query, 'keep').executeTakeFirst();
  if (row === undefined) throw stageNotFound(id);
  const { key, run, status, run_status: runStatus } = row;
  return { key, run, id, isQueueOpen: row.queue_close_time === null, status, runStatus };
}

function selectStageKeys(db: Db, namespace: string, id: string) {
  return db
    .selectFrom('stages as s')
    .innerJoin('runs as r', 'r.key', 's.run')
    .select(['s.key', 's.run'])
    .where('s.namespace', '=', namespace)
    .where('s.id', '=', id)
    .where('r.hidden', '=', 0);
}
