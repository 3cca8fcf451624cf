import { runNotFound } from '../../domain/errors.ts';
import type { Db, Engine, Tx } from './engine.ts';

/** Row keys of a run and of its experiment. */
export interface RunKeys {
  readonly key: bigint;
  readonly experiment: bigint;
}

/** Errors: RUN_NOT_FOUND. */
export async function findRunKeys(engine: Engine, db: Db | Tx, namespace: string, id: string): Promise<RunKeys> {
  const query = engine.kept.of('keys of run', [namespace, id], (of, own) => selectRunKeys(engine.db, of, own));
  const [row] = (await db.executeQuery(query)).rows;
  if (row === undefined) throw runNotFound(id);
  return row;
}

/**
 * The run under a lock that keeps it from being deleted (B4) and lets its verbs go on: whatever writes a child of a run takes it first, so that no row is
 * left behind. Errors: RUN_NOT_FOUND.
 */
export async function keepRun(engine: Engine, tx: Tx, namespace: string, id: string): Promise<RunKeys> {
  const row = await engine.lock(selectRunKeys(tx, namespace, id), 'keep').executeTakeFirst();
  if (row === undefined) throw runNotFound(id);
  return row;
}

/** The run of something that was just found, under the same lock; false: it was deleted since, and what was found with it. */
export async function keepRunOf(
  engine: Engine,
  tx: Tx,
  seen: { readonly run: { readonly key: bigint } },
): Promise<boolean> {
  const query = tx.selectFrom('runs').select('key').where('key', '=', seen.run.key).where('hidden', '=', 0);
  return (await engine.lock(query, 'keep').executeTakeFirst()) !== undefined;
}

function selectRunKeys(db: Db | Tx, namespace: string, id: string) {
  return db
    .selectFrom('runs')
    .select(['key', 'experiment'])
    .where('namespace', '=', namespace)
    .where('id', '=', id)
    .where('hidden', '=', 0);
}
