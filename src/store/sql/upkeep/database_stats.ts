import { sql } from 'kysely';
import type { DatabaseCounts, RunSize } from '../../../domain/database_stats.ts';
import type { Engine } from '../kit/engine.ts';
import type { Tables } from '../kit/tables.ts';

const LARGEST_RUNS = 10;

const OWN_STEPS = sql<bigint>`cast(coalesce(sum(t.next_step_number - coalesce(t.branch_point + 1, 0)), 0) as bigint)`;

export async function countRows(engine: Engine): Promise<DatabaseCounts> {
  const count = (table: keyof Tables) => sql<bigint>`(select count(*) from ${engine.sql.table(table)})`;
  const { rows } = await sql<DatabaseCounts>`
    select count(*) as trajectories, ${OWN_STEPS} as steps, ${count('states')} as states, ${count('runs')} as runs,
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
