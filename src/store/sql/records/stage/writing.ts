import type { Selectable, Updateable } from 'kysely';
import { stageNotFound } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { type StageEnd, stageEndOf } from '../../../../domain/progress.ts';
import type { StageChanges } from '../../../contract/stage.ts';
import { keepRunOf } from '../../kit/run_keys.ts';
import type { StagesTable } from '../../kit/tables.ts';
import type { NamespaceTransaction, Transaction } from '../../kit/transaction.ts';
import { readReal } from '../../kit/values.ts';
import { readPlan } from '../run/rows.ts';
import { tallyRuns } from '../run/tallies.ts';
import { findStage } from './rows.ts';

export type LockedStage = Selectable<StagesTable>;

/**
 * Locks a stage for writing and its run against deletion. With `delete`, also waits for transactions that create
 * rollouts in the stage (`keepStage`), which closing the queue requires. Errors: STAGE_NOT_FOUND.
 */
export async function lockStage(
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
 * Updates a stage's row. Sets mark and revision, because watchers of the run see the change (M5). The caller announces
 * the run after the commit.
 */
export async function writeStage(tx: Transaction, key: bigint, changes: Updateable<StagesTable>): Promise<void> {
  const mark = await tx.readMark();
  await tx.db
    .updateTable('stages')
    .set((eb) => ({ ...changes, update_time: tx.now, mark, revision: eb('revision', '+', 1n) }))
    .where('key', '=', key)
    .execute();
}

/**
 * M2: measures substeps by the clock of the database, from the first report on. Substeps of a later report took the
 * time since the previous one. Substeps before the first report are not measured. A lower count restarts the
 * measurement.
 */
export function timeSubsteps(row: LockedStage, changes: StageChanges, now: string): Updateable<StagesTable> {
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
export async function endOfStage(
  tx: NamespaceTransaction,
  { run, id }: Pick<LockedStage, 'run' | 'id'>,
): Promise<StageEnd> {
  const row = await tx.db.selectFrom('runs').select('plan').where('key', '=', run).executeTakeFirst();
  const tally = (await tallyRuns(tx, [run])).get(run);
  const stage = tally?.openStages.find((open) => open.id === id);
  if (row === undefined || tally === undefined || stage === undefined) {
    throw new Error('a stage that is open in this transaction was not counted');
  }
  return stageEndOf(stage, readPlan(row.plan), tally);
}
