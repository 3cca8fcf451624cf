import type { KeyedTable, Keys, Tx } from '../sql/kit/engine.ts';
import type { Connection } from './connection.ts';

export class SqliteKeys implements Keys {
  readonly #writer: Connection;
  /** Last assigned key of each table, even if its row was not committed. */
  readonly #given = new Map<KeyedTable, bigint>();

  constructor(writer: Connection) {
    this.#writer = writer;
  }

  async next(_tx: Tx, table: KeyedTable): Promise<bigint> {
    return this.give(table, 1);
  }

  async nextMany(_tx: Tx, table: KeyedTable, count: number): Promise<bigint[]> {
    const first = this.give(table, count);
    return Array.from({ length: count }, (_, i) => first + BigInt(i));
  }

  /** Returns the first of `count` keys that were never used or assigned. */
  give(table: KeyedTable, count: number): bigint {
    const [row] = this.#writer.prepare('select seq from sqlite_sequence where name = ?').all([table]) as {
      seq: bigint;
    }[];
    const [used, given] = [row?.seq ?? 0n, this.#given.get(table) ?? 0n];
    const last = used > given ? used : given;
    this.#given.set(table, last + BigInt(count));
    return last + 1n;
  }
}
