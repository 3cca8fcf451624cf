import { type RawBuilder, sql } from 'kysely';
import type { SummaryKey, TrajectorySummaryRow } from '../../../../domain/summary.ts';
import type { SummaryFilter } from '../../../contract/summary.ts';
import type { Engine } from '../../kit/engine.ts';
import { IMMENSE } from '../../kit/expressions.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import {
  columnsOf,
  combinationOf,
  conditionsOf,
  dimensionsOf,
  groupedBy,
  places,
  type ValueColumns,
  valuesOf,
} from './combinations.ts';
import { boundedSum, type RewardColumns, type RewardRow, rewardColumns, rewardsOf } from './rewards.ts';

/**
 * M3: summarizes root trajectories of runs without rollouts, grouped by the dimensions. Uses two statements for any
 * number of trajectories, and a third one if a sum of squares of rewards could overflow.
 */
export async function summarizeTrajectories(
  scope: ReadScope,
  filter: SummaryFilter,
  by: readonly SummaryKey[],
): Promise<TrajectorySummaryRow[]> {
  const { engine } = scope;
  // Trajectories have no stage.
  if (filter.stageKinds.length > 0) return [];
  const none = sql`''`;
  const own = { TASK: sql`t.task_id`, STAGE_KIND: none, MODEL_URI: none, NUMBER: none };
  const values = dimensionsOf(engine, by, 't', own);
  const selected = selectedBy(engine, await trajectoryConditions(scope, filter), values);
  const [counted, sums] = await Promise.all([
    countTrajectories(engine, selected, values),
    sumMetrics(engine, selected, values),
  ]);
  const sumsOf = Map.groupBy(sums, (row) => combinationOf(row, by.length));
  const rewards = await rewardsOf(counted, by.length, () => readAllRewards(engine, selected, values));
  return counted.map((row, i) => {
    const metrics = sumsOf.get(combinationOf(row, by.length)) ?? [];
    return {
      values: valuesOf(row, by.length),
      trajectories: row.trajectories,
      steps: row.steps,
      rewards: rewards[i]!,
      metricSums: new Map(metrics.map(({ name, total, least, most }) => [name, boundedSum(total, least, most)])),
    };
  });
}

/** Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
async function trajectoryConditions(scope: ReadScope, filter: SummaryFilter): Promise<RawBuilder<unknown>[]> {
  const { taskIds } = filter;
  return [
    ...(await conditionsOf(scope, filter, 't', 'u.key')),
    sql`not t.hidden`,
    sql`t.parent is null`,
    sql`not exists (select 1 from ${scope.engine.sql.table('rollouts')} as o where o.run = u.key)`,
    ...(taskIds.length > 0 ? [sql`t.task_id in (${sql.join(taskIds)})`] : []),
  ];
}

/** Selects the trajectories with the values as the columns v0, v1, … */
function selectedBy(
  engine: Engine,
  conditions: readonly RawBuilder<unknown>[],
  values: readonly RawBuilder<unknown>[],
): RawBuilder<unknown> {
  return sql`select ${columnsOf(values)} t.tree, t.key, t.next_step_number as steps, t.reward_sum as reward
    from ${engine.sql.table('runs')} as u join ${engine.sql.table('trajectories')} as t on t.run = u.key
    where ${sql.join(conditions, sql` and `)}`;
}

interface CountedRow extends RewardColumns {
  readonly trajectories: bigint;
  readonly steps: bigint;
}

async function countTrajectories(
  engine: Engine,
  selected: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<CountedRow[]> {
  const x = sql`case when q.reward < ${IMMENSE} and q.reward > ${-IMMENSE} then q.reward end`;
  const { rows } = await sql<CountedRow>`with q as (${selected})
    select ${sql.join([...places(values), sql`count(*) as trajectories`])},
      cast(coalesce(sum(q.steps), 0) as bigint) as steps,
      ${rewardColumns(engine.aggregates, x, sql`case when q.reward <> 'NaN' then 1 end`)}
    from q ${groupedBy(places(values))}`.execute(engine.db);
  return rows.filter(({ trajectories }) => trajectories > 0n);
}

/** Returns the final rewards of every combination. */
async function readAllRewards(
  engine: Engine,
  selected: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<RewardRow[]> {
  const { rows } = await sql<RewardRow>`
    with q as (${selected})
    select ${sql.join([...places(values), sql`q.reward`])} from q where q.reward <> 'NaN'`.execute(engine.db);
  return rows;
}

interface SumRow extends ValueColumns {
  readonly name: string;
  readonly total: number | null;
  readonly least: number;
  readonly most: number;
}

async function sumMetrics(
  engine: Engine,
  selected: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<SumRow[]> {
  const { table, name, total, least, most } = engine.aggregates.metricSums(sql.ref('s.metric_sums'));
  const { rows } = await sql<SumRow>`with q as (${selected})
    select ${sql.join([...places(values), sql`${name} as name`])},
      sum(${total}) as total, min(${least}) as least, max(${most}) as most
    from q join ${engine.sql.table('segments')} as s on s.tree = q.tree and s.trajectory = q.key cross join ${table}
    group by ${sql.join([...places(values), name])}`.execute(engine.db);
  return rows;
}
