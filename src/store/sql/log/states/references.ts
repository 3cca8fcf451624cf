import { type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Engine } from '../../kit/engine.ts';
import type { Transaction } from '../../kit/transaction.ts';

/** Whether a step refers to the row `s` of `states`. A lookup by index for each row, in any plan. */
export function isReferenced(engine: Engine): RawBuilder<SqlBool> {
  return sql`(select r.tree from ${engine.sql.table('state_refs')} as r where r.state = s.key limit 1) is not null`;
}

/**
 * Collects the states whose references a transaction deletes. The last statements of the transaction update them, in
 * the lock order of appends. Appends that refer to one of them thus wait only for the end of the transaction.
 */
export class Unreferencing {
  readonly #tx: Transaction;
  readonly #namespaces = new Map<string, Set<bigint>>();

  constructor(tx: Transaction) {
    this.#tx = tx;
  }

  add(references: readonly { readonly namespace: string; readonly state: bigint }[]): void {
    for (const { namespace, state } of references) {
      const states = this.#namespaces.get(namespace) ?? new Set();
      this.#namespaces.set(namespace, states.add(state));
    }
  }

  /** Marks the states that have no other references as unreferenced. */
  async write(): Promise<void> {
    for (const [, states] of [...this.#namespaces].sort(([a], [b]) => (a < b ? -1 : 1))) {
      await this.#unmark([...states]);
    }
  }

  async #unmark(keys: readonly bigint[]): Promise<void> {
    const { engine, db } = this.#tx;
    const states = db
      .selectFrom('states')
      .select('key')
      .where(engine.sql.among(sql.ref('key'), keys))
      .orderBy('digest');
    // Locked before references are looked for: of two transactions that delete the last ones, the later one finds none.
    await engine.locks.rows(states, 'write').execute();
    await sql`update ${engine.sql.table('states')} as s set referenced = false, version = version + 1
      where ${engine.sql.among(sql.ref('s.key'), keys)} and not ${isReferenced(engine)}`.execute(db);
  }
}
