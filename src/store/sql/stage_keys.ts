import { stageNotFound } from '../../domain/errors.ts';
import type { Db, Engine, Tx } from './engine.ts';

/** Row keys of a stage and of its run. */
export interface StageKeys {
  readonly key: bigint;
  readonly run: bigint;
}

/** Errors: STAGE_NOT_FOUND. */
export async function findStageKeys(engine: Engine, db: Db | Tx, namespace: string, id: string): Promise<StageKeys> {
  const query = engine.kept.of('keys of stage', [namespace, id], (of, own) => selectStageKeys(engine.db, of, own));
  const [row] = (await db.executeQuery(query)).rows;
  if (row === undefined) throw stageNotFound(id);
  return row;
}

/** The stage and its run under locks that keep them from being deleted (B4) and let their verbs go on. Errors: STAGE_NOT_FOUND. */
export async function keepStage(engine: Engine, tx: Tx, namespace: string, id: string): Promise<StageKeys> {
  const row = await engine.lock(selectStageKeys(tx, namespace, id), 'keep').executeTakeFirst();
  if (row === undefined) throw stageNotFound(id);
  return row;
}

function selectStageKeys(db: Db | Tx, namespace: string, id: string) {
  return db
    .selectFrom('stages as s')
    .innerJoin('runs as r', 'r.key', 's.run')
    .select(['s.key', 's.run'])
    .where('s.namespace', '=', namespace)
    .where('s.id', '=', id)
    .where('r.hidden', '=', 0);
}
