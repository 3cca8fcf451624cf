import { sql } from 'kysely';
import type { KeyedTable, Keys, Tx } from '../sql/kit/engine.ts';
import { sequenceOf } from './schema.ts';

export class PostgresKeys implements Keys {
  async next(tx: Tx, table: KeyedTable): Promise<bigint> {
    const { rows } = await sql<{ key: bigint }>`select nextval(${sequenceOf(table)}) as key`.execute(tx);
    const row = rows[0];
    if (row === undefined) throw new Error('the sequence returned no key');
    return row.key;
  }

  async nextMany(tx: Tx, table: KeyedTable, count: number): Promise<bigint[]> {
    const { rows } = await sql<{
      key: bigint;
    }>`select nextval(${sequenceOf(table)}) as key from generate_series(1, ${count})`.execute(tx);
    return rows.map(({ key }) => key);
  }
}
