import type { SelectQueryBuilder } from 'kysely';
import { runNotFound } from '../../../domain/errors.ts';
import type { Db } from './engine.ts';
import { chunksOf, padded } from './kept_queries.ts';
import type { Tables } from './tables.ts';
import type { NamespaceTransaction, ReadScope, Transaction } from './transaction.ts';

/** Tables whose rows have an id that is unique in its namespace. */
export type TableWithId =
  | 'trajectories'
  | 'experiments'
  | 'runs'
  | 'stages'
  | 'tasks'
  | 'validators'
  | 'groups'
  | 'rollouts'
  | 'environments';

/** Tables whose rows stay hidden from when they are deleted until they are purged. */
type TableWithHidden = 'trajectories' | 'experiments' | 'runs';

/** Selects the row with this id. Rows that are deleted and not purged yet keep their ids and are included. */
export function byId<T extends TableWithId>({ db, namespace }: ReadScope, table: T, id: string): From<T> {
  const query = db
    .selectFrom(table as TableWithId)
    .where('namespace', '=', namespace)
    .where('id', '=', id);
  // Kysely cannot infer columns from a table that is a type parameter.
  return query as unknown as From<T>;
}

/** Returns the row keys of those ids that have a row, as `byId` selects it. */
export async function keysById(
  { db, namespace }: Pick<ReadScope, 'db' | 'namespace'>,
  table: TableWithId,
  ids: readonly string[],
): Promise<Map<string, bigint>> {
  const found = new Map<string, bigint>();
  for (const some of chunksOf(ids)) {
    const query = db.selectFrom(table).select(['id', 'key']).where('namespace', '=', namespace);
    for (const { id, key } of await query.where('id', 'in', padded(some)).execute()) found.set(id, key);
  }
  return found;
}

/** Like `byId`, without deleted rows. */
export function visibleById<T extends TableWithHidden>(scope: ReadScope, table: T, id: string): From<T> {
  const query = byId<TableWithHidden>(scope, table, id).where('hidden', '=', 0);
  return query as unknown as From<T>;
}

type From<T extends keyof Tables> = SelectQueryBuilder<Tables, T, object>;

/** Row keys of a run and of its experiment. */
export interface RunKeys {
  readonly key: bigint;
  readonly experiment: bigint;
}

/** Errors: RUN_NOT_FOUND. */
export async function findRunKeys({ engine, db, namespace }: ReadScope, id: string): Promise<RunKeys> {
  const query = engine.kept.byKey('keys of run', [namespace, id], (of, own) => selectRunKeys(db, of, own));
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
