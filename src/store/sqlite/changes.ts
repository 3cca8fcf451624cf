import { type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Hint } from '../../domain/change.ts';
import type { Horizon } from '../contract/run.ts';
import type { ChangeListeners } from '../sql/kit/changes.ts';
import type { Changes, Tx } from '../sql/kit/engine.ts';

/** One transaction writes at a time, and its mark is above all committed ones. */
export class SqliteChanges implements Changes {
  /** One process uses the file. */
  readonly hearsOthers = true;
  readonly horizon = sql<string>`(select cast(mark as text) from change_marks)`;
  readonly #listeners: ChangeListeners;

  constructor(listeners: ChangeListeners) {
    this.#listeners = listeners;
  }

  announce(hints: readonly Hint[]): void {
    for (const hint of hints) this.#listeners.tell(hint);
  }

  onChange(listener: (hint: Hint | undefined) => void): () => void {
    return this.#listeners.add(listener);
  }

  onReplaced(): () => void {
    return () => {};
  }

  async mark(tx: Tx): Promise<bigint> {
    const { rows } = await sql<{ mark: bigint }>`update change_marks set mark = mark + 1 returning mark`.execute(tx);
    return markOf(rows);
  }

  horizonOf(text: string): Horizon {
    return { next: BigInt(text) + 1n, open: [], era: '' };
  }

  since(mark: RawBuilder<unknown>, { next }: Horizon): RawBuilder<SqlBool>[] {
    return [sql<SqlBool>`${mark} >= ${next}`];
  }
}

function markOf(rows: readonly { readonly mark: bigint }[]): bigint {
  if (rows[0] === undefined) throw new Error('the schema has no mark of changes');
  return rows[0].mark;
}
