import { type CompiledQuery, type RawBuilder, type SqlBool, sql } from 'kysely';
import type { StorageUsage } from '../../../domain/usage.ts';
import type { StorageFault } from '../../../domain/verification.ts';
import type { Engine } from '../kit/engine.ts';
import type { ReadScope } from '../kit/transaction.ts';

interface Totals {
  readonly step_logical: bigint;
  readonly step_stored: bigint;
  readonly state_logical: bigint;
  readonly state_stored: bigint;
}

interface NamespaceTotals extends Totals {
  readonly namespace: string;
}

const COLUMNS = ['step_logical', 'step_stored', 'state_logical', 'state_stored'] as const;

const SUMS = sql.join(
  COLUMNS.map((name) => sql`cast(coalesce(sum(${sql.ref(name)}), 0) as bigint) as ${sql.ref(name)}`),
);

/** S12: the maintained totals of a namespace, and the rows that were not merged yet. */
export async function usageOfNamespace({ engine, namespace }: ReadScope): Promise<StorageUsage> {
  const query = sql<Totals>`select ${SUMS} from (${maintained(engine, sql`${sql.ref('namespace')} = ${namespace}`)}) as u`;
  const { step_logical, step_stored, state_logical, state_stored } = (await query.execute(engine.byIndex().db))
    .rows[0]!;
  return {
    steps: { logical: step_logical, stored: step_stored, shared: 0n },
    states: { logical: state_logical, stored: state_stored, shared: 0n },
  };
}

/**
 * Selects the maintained totals, and the rows that they do not include yet. `where` is a condition on the namespace.
 */
function maintained(engine: Engine, where: RawBuilder<SqlBool>): RawBuilder<NamespaceTotals> {
  // Rows before `merged_to` are counted.
  return sql`select namespace, ${sql.join(COLUMNS.map((name) => sql.ref(name)))}
    from ${engine.table('storage_counts')} where ${where}
    union all
    select s.namespace, octet_length(s.body), octet_length(s.body), coalesce(s.states_bytes, octet_length(s.states)),
      octet_length(s.states)
    from (select tree, key, merged_to from ${engine.table('trajectories')} where ${where} and not counted) as t
    cross join ${engine.table('segments')} as s
    where s.tree = t.tree and s.trajectory = t.key and s.first_step_number >= t.merged_to and s.body_bytes is null`;
}

/** Selects the lengths of all rows, which the totals must equal. */
function counted(engine: Engine): RawBuilder<NamespaceTotals> {
  return sql`select namespace, coalesce(body_bytes, octet_length(body)) as step_logical,
      octet_length(body) as step_stored, coalesce(states_bytes, octet_length(states)) as state_logical,
      octet_length(states) as state_stored
    from ${engine.table('segments')}
    union all
    select namespace, 0, 0, octet_length(data), octet_length(data) from ${engine.table('attached_states')}
    union all
    select r.namespace, 0, 0, s.size, 0
    from ${engine.table('state_refs')} as r inner join ${engine.table('states')} as s on s.key = r.state
    union all
    select namespace, 0, 0, 0, octet_length(data) from ${engine.table('states')}
    union all
    select namespace, 0, 0, 0, octet_length(data) from ${engine.table('state_chunks')}`;
}

/** Compares the totals with all rows. */
export async function checkTotals(engine: Engine): Promise<readonly StorageFault[]> {
  const byNamespace = (rows: RawBuilder<NamespaceTotals>) =>
    sql`select namespace, ${SUMS} from (${rows}) as u group by namespace`.compile(
      engine.db,
    ) as CompiledQuery<NamespaceTotals>;
  const [totals, rows] = await engine.reads.snapshot([
    byNamespace(maintained(engine, sql<SqlBool>`1 = 1`)),
    byNamespace(counted(engine)),
  ]);
  const expected = new Map(rows.map((row) => [row.namespace, row]));
  const found = new Map(totals.map((row) => [row.namespace, row]));
  return [...new Set([...expected.keys(), ...found.keys()])].flatMap((namespace): StorageFault[] => {
    const [is, should] = [found.get(namespace), expected.get(namespace)];
    return COLUMNS.filter((name) => (is?.[name] ?? 0n) !== (should?.[name] ?? 0n)).map((name) => {
      const message = `namespace ${namespace}: the total ${name} is ${is?.[name] ?? 0n}, and its rows have ${should?.[name] ?? 0n} bytes`;
      return { check: 'SUMS', namespace, message };
    });
  });
}

/**
 * Adds up the rows of each namespace that has more than `mostRows`. On SQLite, a namespace always has one row. Two
 * instances may do it at the same time: the second one waits for the first one's rows, and finds none.
 */
export async function foldTotals(engine: Engine, mostRows = 1): Promise<void> {
  const counts = engine.table('storage_counts');
  const { rows } = await sql<{ namespace: string }>`
    select namespace from ${counts} group by namespace having count(*) > ${sql.lit(mostRows)}`.execute(engine.db);
  for (const { namespace } of rows) {
    await engine.transactions.run((tx) =>
      sql`with taken as (delete from ${counts} where namespace = ${namespace} returning *)
        insert into ${counts} select namespace, ${SUMS} from taken group by namespace`.execute(tx),
    );
  }
}
