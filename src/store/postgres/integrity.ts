import { type RawBuilder, sql } from 'kysely';
import type { Transactions, Tx } from '../sql/kit/engine.ts';
import type { Integrity } from '../sql/upkeep/verification/database.ts';
import { isDamage } from './errors.ts';
import { SCHEMA } from './schema.ts';

export class PostgresIntegrity implements Integrity {
  readonly isDamage = isDamage;
  readonly #transactions: Transactions;

  constructor(transactions: Transactions) {
    this.#transactions = transactions;
  }

  check(): AsyncGenerator<readonly string[], void, undefined> {
    return checkRelations((work) => this.#transactions.run(work, { unbounded: true }));
  }
}

interface Checked {
  readonly name: string;
  readonly kind: 'table' | 'index';
  readonly functions: string;
}

/**
 * Runs the extension amcheck on each table and index, if it is installed and its functions may be called. Each check is
 * a transaction of its own, without a time limit: `transact` runs it.
 */
async function* checkRelations(
  transact: <T>(work: (tx: Tx) => Promise<T>) => Promise<T>,
): AsyncGenerator<readonly string[], void, undefined> {
  for (const { name, kind, functions } of await transact(findRelations)) {
    const relation = sql`${`${SCHEMA}.${name}`}::regclass`;
    const check: RawBuilder<{ message: string }> =
      kind === 'table'
        ? sql`select msg || coalesce(' (block ' || blkno || ')', '') as message
            from ${sql.id(functions, 'verify_heapam')}(${relation})`
        : sql`select cast(${sql.id(functions, 'bt_index_check')}(${relation}, true) as text) as message`;
    try {
      const { rows } = await transact((tx) => check.execute(tx));
      yield rows.flatMap(({ message }) => (message === '' ? [] : [`${kind} ${name}: ${message}`]));
    } catch (error) {
      if (!isDamage(error)) throw error;
      yield [`${kind} ${name}: ${(error as Error).message}`];
    }
  }
}

async function findRelations(tx: Tx): Promise<readonly Checked[]> {
  const { rows } = await sql<Checked>`
    select c.relname as name, case c.relkind when 'i' then 'index' else 'table' end as kind, f.nspname as functions
    from pg_catalog.pg_class as c
    inner join pg_catalog.pg_namespace as n on n.oid = c.relnamespace and n.nspname = ${SCHEMA}
    inner join pg_catalog.pg_am as m on m.oid = c.relam and m.amname in ('btree', 'heap')
    inner join pg_catalog.pg_extension as e on e.extname = 'amcheck'
    inner join pg_catalog.pg_namespace as f on f.oid = e.extnamespace
    where c.relkind in ('i', 'r') and has_schema_privilege(f.oid, 'usage') and (select bool_and(
        has_function_privilege(p.oid, 'execute')) from pg_catalog.pg_proc as p
      where p.pronamespace = f.oid and p.proname in ('verify_heapam', 'bt_index_check'))
    order by c.relkind desc, c.relname`.execute(tx);
  return rows;
}
