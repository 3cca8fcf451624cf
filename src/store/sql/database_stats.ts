import { sql } from 'kysely';
import type { DatabaseCounts, DatabaseStats, RunSize } from '../../domain/database_stats.ts';
import type { Engine } from './engine.ts';
import type { Tables } from './tables.ts';

const LARGEST_RUNS = 10;

export async function measureDatabase(engine: Engine): Promise<DatabaseStats> {
  return { counts: await countRows(engine), largestRuns: await findLargestRuns(engine) };
}

const OWN_STEPS = sql<bigint>`cast(coalesce(sum(t.next_step_number - coalesce(t.branch_point + 1, 0)), 0) as bigint)`;

async function countRows(engine: Engine): Promise<DatabaseCounts> {
  const count = (table: keyof Tables) => sql<bigint>`(select count(*) from ${engine.table(table)})`;
  const { rows } = await sql<DatabaseCounts>`
    select count(*) as trajectories, ${OWN_STEPS} as steps, ${count('states')} as states, ${count('runs')} as runs,
      ${count('rollouts')} as rollouts, ${count('metric_points')} as ${sql.ref('metricPoints')}
    from ${engine.table('trajectories')} as t`.execute(engine.db);
  return rows[0]!;
}

async function findLargestRuns(engine: Engine): Promise<readonly RunSize[]> {
  const { rows } = await sql<RunSize>`
    select r.namespace, cast(r.id as text) as ${sql.ref('runId')}, r.name, s.trajectories, s.steps
    from (select t.run, count(*) as trajectories, ${OWN_STEPS} as steps
      from ${engine.table('trajectories')} as t where t.run is not null group by t.run) as s
    inner join ${engine.table('runs')} as r on r.key = s.run
    where not r.hidden
    order by s.steps desc, r.key desc limit ${sql.lit(LARGEST_RUNS)}`.execute(engine.db);
  return rows;
}
