import { stageNotFound } from '../../../../domain/errors.ts';
import type { Db } from '../../kit/engine.ts';
import type { NamespaceTransaction, ReadScope } from '../../kit/transaction.ts';

/** Row keys of a stage and of its run. */
export interface StageKeys {
  readonly key: bigint;
  readonly run: bigint;
}

/** Errors: STAGE_NOT_FOUND. */
export async function findStageKeys({ engine, db, namespace }: ReadScope, id: string): Promise<StageKeys> {
  const query = engine.kept.of('keys of stage', [namespace, id], (of, own) => selectStageKeys(db, of, own));
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
