import { type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Hint } from '../../domain/change.ts';
import type { Horizon } from '../contract/run.ts';
import type { ChangeListeners } from '../sql/kit/changes.ts';
import type { Changes, Tx } from '../sql/kit/engine.ts';
import { padded } from '../sql/kit/kept_queries.ts';
import type { Notifier } from './notify.ts';

/** The mark of a change is the id of its transaction. */
export class PostgresChanges implements Changes {
  readonly horizon = sql<string>`(pg_current_snapshot()::text || ' ' || pg_postmaster_start_time()::text)`;
  readonly #listeners: ChangeListeners;
  readonly #replaced: ChangeListeners<void>;
  readonly #notifier: Notifier;

  constructor(listeners: ChangeListeners, replaced: ChangeListeners<void>, notifier: Notifier) {
    this.#listeners = listeners;
    this.#replaced = replaced;
    this.#notifier = notifier;
  }

  announce(hints: readonly Hint[]): void {
    for (const hint of hints) this.#listeners.tell(hint);
    this.#notifier.announce(hints);
  }

  get hearsOthers(): boolean {
    return this.#notifier.listening;
  }

  onChange(listener: (hint: Hint | undefined) => void): () => void {
    return this.#listeners.add(listener);
  }

  onReplaced(listener: () => void): () => void {
    return this.#replaced.add(listener);
  }

  async mark(tx: Tx): Promise<bigint> {
    const { rows } = await sql<{ mark: bigint }>`select pg_current_xact_id()::text::bigint as mark`.execute(tx);
    const row = rows[0];
    if (row === undefined) throw new Error('the database returned no transaction id');
    return row.mark;
  }

  horizonOf(text: string): Horizon {
    const [, next, open = '', server] = /^\d+:(\d+):([\d,]*) (.*)$/.exec(text) ?? [];
    if (next === undefined) throw new Error(`the database returned the snapshot "${text}"`);
    return {
      next: BigInt(next),
      open: open === '' ? [] : open.split(',').map(BigInt),
      era: `${server} ${this.#notifier.losses}`,
    };
  }

  /**
   * Excludes marks that this cluster has not reached: they come from a restored dump and are not new. The bound is that
   * of the statement's own snapshot, which sees no newer row.
   */
  since(mark: RawBuilder<unknown>, { next, open }: Horizon): RawBuilder<SqlBool>[] {
    const later = sql<SqlBool>`${mark} >= ${next} and ${mark} < pg_snapshot_xmax(pg_current_snapshot())::text::bigint`;
    // One condition per mark, because Postgres before version 17 cannot read an index in order for a list of values.
    const noMark = -1n;
    const shape = padded(open).map((_, i) => open[i] ?? noMark);
    return [...shape.map((each) => sql<SqlBool>`${mark} = cast(${each} as bigint)`), later];
  }
}
