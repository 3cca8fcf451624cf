import { type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Change } from '../../domain/change.ts';
import type { Horizon } from '../contract/run.ts';
import type { ChangeListeners } from '../sql/kit/changes.ts';
import type { Changes, Db, Tx } from '../sql/kit/engine.ts';

/** One transaction writes at a time, and its mark is above all committed ones. */
export class SqliteChanges implements Changes {
  readonly #listeners: ChangeListeners;

  constructor(listeners: ChangeListeners) {
    this.#listeners = listeners;
  }

  announce(changes: readonly Change[]): void {
    for (const change of changes) this.#listeners.tell(change);
  }

  onChange(listener: (change: Change | undefined) => void): () => void {
    return this.#listeners.add(listener);
  }

  async mark(tx: Tx): Promise<bigint> {
    const { rows } = await sql<{ mark: bigint }>`update change_marks set mark = mark + 1 returning mark`.execute(tx);
    return markOf(rows);
  }

  async readHorizon(db: Db): Promise<Horizon> {
    const { rows } = await sql<{ mark: bigint }>`select mark from change_marks`.execute(db);
    return { next: markOf(rows) + 1n, open: [], era: '' };
  }

  since(mark: RawBuilder<unknown>, { next }: Horizon): RawBuilder<SqlBool>[] {
    return [sql<SqlBool>`${mark} >= ${next}`];
  }
}

function markOf(rows: readonly { readonly mark: bigint }[]): bigint {
  if (rows[0] === undefined) throw new Error('the schema has no mark of changes');
  return rows[0].mark;
}
