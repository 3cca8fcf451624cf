import { runNotFound } from '../../../domain/errors.ts';
import type { Db } from './engine.ts';
import type { NamespaceTransaction, ReadScope, Transaction } from './transaction.ts';

/** Row keys of a run and of its experiment. */
export interface RunKeys {
  readonly key: bigint;
  readonly experiment: bigint;
}

/** Errors: RUN_NOT_FOUND. */
export async function findRunKeys({ engine, db, namespace }: ReadScope, id: string): Promise<RunKeys> {
  const query = engine.kept.of('keys of run', [namespace, id], (of, own) => selectRunKeys(db, of, own));
  const [row] = (await db.executeQuery(query)).rows;
  if (row === undefined) throw runNotFound(id);
  return row;
}

/**
 * Locks a run against deletion (B4) without blocking its verbs. Writers of a run's children take this lock first, so
 * that no orphaned row remains. Errors: RUN_NOT_FOUND.
 */
export async function keepRun(tx: NamespaceTransaction, id: string): Promise<RunKeys> {
  const row = await tx.engine.locks.rows(selectRunKeys(tx.db, tx.namespace, id), 'keep').executeTakeFirst();
  if (row === undefined) throw runNotFound(id);
  return row;
}

/** Takes the same lock on the run of a row that was just read. Returns false if the run was deleted since. */
export async function keepRunOf(tx: Transaction, seen: { readonly run: { readonly key: bigint } }): Promise<boolean> {
  const query = tx.db.selectFrom('runs').select('key').where('key', '=', seen.run.key).where('hidden', '=', 0);
  return (await tx.engine.locks.rows(query, 'keep').executeTakeFirst()) !== undefined;
}

function selectRunKeys(db: Db, namespace: string, id: string) {
  return db
    .selectFrom('runs')
    .select(['key', 'experiment'])
    .where('namespace', '=', namespace)
    .where('id', '=', id)
    .where('hidden', '=', 0);
}
