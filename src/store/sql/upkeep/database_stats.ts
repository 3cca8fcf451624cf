import { sql } from 'kysely';
import type { DatabaseCounts, RunSize } from '../../../domain/verification.ts';
import type { Engine } from '../kit/engine.ts';
import type { Tables } from '../kit/tables.ts';
import { NO_RUNS, runBegin, runEnd, runsIn } from '../log/read/step_runs.ts';

const LARGEST_RUNS = 10;

const OWN_STEPS = sql<bigint>`cast(coalesce(sum(t.next_step_number - coalesce(t.branch_point + 1, 0)), 0) as bigint)`;

export async function countRows(engine: Engine): Promise<DatabaseCounts> {
  const count = (table: keyof Tables) => sql<bigint>`(select count(*) from ${engine.sql.table(table)})`;
  // All states of steps, without those that steps refer to.
  const smallStates = sql<bigint>`cast(
    (select coalesce(sum(${runEnd('r')} - ${runBegin('r')}), 0) from ${engine.sql.table('segments')} as s
      cross join ${runsIn(engine, sql`s.state_names`, 'r')} where s.state_names <> ${sql.lit(NO_RUNS)})
    - (select count(*) from ${engine.sql.table('state_refs')} where name <> '') as bigint)`;
  const { rows } = await sql<DatabaseCounts>`
    select count(*) as trajectories, ${OWN_STEPS} as steps, ${count('states')} as states,
      ${smallStates} as ${sql.ref('smallStates')}, ${count('runs')} as runs,
      ${count('rollouts')} as rollouts, ${count('metric_points')} as ${sql.ref('metricPoints')}
    from ${engine.sql.table('trajectories')} as t`.execute(engine.db);
  return rows[0]!;
}

export async function findLargestRuns(engine: Engine, namespace: string): Promise<readonly RunSize[]> {
  const { rows } = await sql<RunSize>`
    select cast(r.id as text) as ${sql.ref('runId')}, r.name, s.trajectories, s.steps
    from (select t.run, count(*) as trajectories, ${OWN_STEPS} as steps
      from ${engine.sql.table('trajectories')} as t where t.namespace = ${namespace} and t.run is not null group by t.run) as s
    inner join ${engine.sql.table('runs')} as r on r.key = s.run
    where not r.hidden
    order by s.steps desc, r.key desc limit ${sql.lit(LARGEST_RUNS)}`.execute(engine.db);
  return rows;
}

/** Tables whose rows do not belong to rows of others. Each has an index that begins with the namespace. */
const ROOTS = [
  'tasks',
  'validators',
  'experiments',
  'runs',
  'trajectories',
  'deleted_trajectories',
] as const satisfies readonly (keyof Tables)[];

/** Returns the namespaces that have rows, in order. Each is found by one step in an index per table. */
export async function listNamespaces(engine: Engine): Promise<string[]> {
  const found = new Set<string>();
  for (const table of ROOTS) {
    for (let last: string | null = ''; last !== null; ) {
      last = await nextNamespace(engine, table, last);
      if (last !== null) found.add(last);
    }
  }
  return [...found].sort();
}

async function nextNamespace(engine: Engine, table: keyof Tables, after: string): Promise<string | null> {
  const { rows } = await sql<{ namespace: string | null }>`
    select min(namespace) as namespace from ${engine.sql.table(table)} where namespace > ${after}`.execute(engine.db);
  return rows[0]?.namespace ?? null;
}
