import type { SelectQueryBuilder } from 'kysely';
import { chunksOf, padded } from './statement_shapes.ts';
import type { Tables } from './tables.ts';
import type { ReadScope } from './transaction.ts';

/** Tables whose rows have an id that is unique in its namespace. */
type TableWithId =
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
