import { sql, type Updateable } from 'kysely';
import { runNotFound } from '../../../../domain/errors.ts';
import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import type { RunsTable } from '../../kit/tables.ts';
import type { NamespaceTransaction, Transaction } from '../../kit/transaction.ts';

export type LockedRun = Awaited<ReturnType<ReturnType<typeof selectToWrite>['executeTakeFirstOrThrow']>>;

/** Selects the columns of a run (`r`) that writes depend on. */
export function selectToWrite(tx: Transaction) {
  return tx.db
    .selectFrom('runs as r')
    .select([
      'r.key',
      'r.namespace',
      'r.id',
      'r.name',
      'r.experiment',
      'r.plan',
      'r.main_tree',
      'r.main_trajectory',
      'r.status',
      'r.status_message',
      'r.phase',
      'r.metrics',
      'r.result_json',
      'r.pauses',
      'r.heartbeat_timeout_ms',
      'r.fail_when_stale',
      'r.heartbeat_time',
      'r.start_time',
      'r.status_changes',
    ])
    .where(sql<boolean>`not r.hidden`);
}

/** Locks a run's row for writing. Errors: RUN_NOT_FOUND. */
export async function lockRun(tx: NamespaceTransaction, id: string): Promise<LockedRun> {
  const query = selectToWrite(tx).where('r.namespace', '=', tx.namespace).where('r.id', '=', id);
  const row = await tx.engine.locks.rows(query, 'write').executeTakeFirst();
  if (row === undefined) throw runNotFound(id);
  return row;
}

/**
 * Updates a run's row. Sets mark and revision, because watchers see the change (M5). The caller announces the run after
 * the commit.
 */
export async function writeRun(tx: Transaction, key: bigint, changes: Updateable<RunsTable>): Promise<void> {
  const mark = await tx.readMark();
  await tx.db
    .updateTable('runs')
    .set((eb) => ({ ...changes, update_time: tx.now, mark, revision: eb('revision', '+', 1n) }))
    .where('key', '=', key)
    .execute();
}

/** Columns of a heartbeat at `now`. The run is stale after `timeoutMs` without another one. */
export function heartbeatAt(now: string, timeoutMs: number | bigint) {
  return { heartbeat_time: now, stale_time: formatInstant(parseInstant(now) + BigInt(timeoutMs) * 1_000_000n, 6) };
}
