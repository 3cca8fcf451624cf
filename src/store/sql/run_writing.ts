import { sql, type Updateable } from 'kysely';
import { runNotFound } from '../../domain/errors.ts';
import { formatInstant, parseInstant } from '../../domain/instant.ts';
import type { Engine, Tx } from './engine.ts';
import type { RunsTable } from './tables.ts';

export type LockedRun = Awaited<ReturnType<ReturnType<typeof selectToWrite>['executeTakeFirstOrThrow']>>;

/** What of a run's row (`r`) decides how it is written. */
export function selectToWrite(tx: Tx) {
  return tx
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

/** A run's row, locked for writing. Errors: RUN_NOT_FOUND. */
export async function lockRun(engine: Engine, tx: Tx, namespace: string, id: string): Promise<LockedRun> {
  const query = selectToWrite(tx).where('r.namespace', '=', namespace).where('r.id', '=', id);
  const row = await engine.lock(query, 'write').executeTakeFirst();
  if (row === undefined) throw runNotFound(id);
  return row;
}

/** Every write of a run's row: it counts as a change for those who watch (M5), who are to be told once it is committed. */
export async function writeRun(
  engine: Engine,
  tx: Tx,
  key: bigint,
  now: string,
  changes: Updateable<RunsTable>,
): Promise<void> {
  const mark = await engine.changeMark(tx);
  await tx
    .updateTable('runs')
    .set((eb) => ({ ...changes, update_time: now, mark, revision: eb('revision', '+', 1n) }))
    .where('key', '=', key)
    .execute();
}

/** A heartbeat at a time of the database's: it lasts for the timeout, after which the run is stale. */
export function beat(now: string, timeoutMs: number | bigint) {
  return { heartbeat_time: now, stale_time: formatInstant(parseInstant(now) + BigInt(timeoutMs) * 1_000_000n, 6) };
}
