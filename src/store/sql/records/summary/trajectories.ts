import { type RawBuilder, sql } from 'kysely';
import type { SummaryKey, TrajectorySummaryRow } from '../../../../domain/summary.ts';
import type { SummaryFilter } from '../../../contract/summary.ts';
import { IMMENSE } from '../../kit/aggregates.ts';
import type { Engine } from '../../kit/engine.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindTimeBound } from '../../kit/values.ts';
import { experimentKey } from '../experiment/rows.ts';
import { momentsOf, type Rewards } from './moments.ts';
import {
  boundedSum,
  type RewardColumns,
  type RewardRow,
  readRewards,
  rewardColumns,
  rewardsByCombination,
} from './rewards.ts';
import { runKeys } from './summaries.ts';
import { columnsOf, combinationOf, groupedBy, type ValueColumns, valuesOf } from './values.ts';

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
  const conditions = await conditionsOf(scope, filter);
  const values = by.map((key) => engine.aggregates.bytewise(dimension(engine, key)));
  const [counted, sums] = await Promise.all([
    countTrajectories(engine, conditions, values),
    sumMetrics(engine, conditions, values),
  ]);
  const sumsOf = Map.groupBy(sums, (row) => combinationOf(row, by.length));
  const beyond = counted.some(({ immense }) => immense > 0n);
  const rewardsOf = beyond ? await readImmense(engine, conditions, values) : undefined;
  return counted.map((row) => {
    const combination = combinationOf(row, by.length);
    const rewards = rewardsOf === undefined ? readRewards(row) : (rewardsOf.get(combination) ?? momentsOf([]));
    const metricSums = new Map(
      (sumsOf.get(combination) ?? []).map((sum) => [sum.name, boundedSum(sum.total, sum.least, sum.most)]),
    );
    return { values: valuesOf(row, by.length), trajectories: row.trajectories, steps: row.steps, rewards, metricSums };
  });
}

/** Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
async function conditionsOf(scope: ReadScope, filter: SummaryFilter): Promise<RawBuilder<unknown>> {
  const { engine } = scope;
  const { runs, experimentId, taskIds, runLabels, labels, createTimeFrom, createTimeTo } = filter;
  const conditions = [
    sql`u.namespace = ${scope.namespace}`,
    sql`not u.hidden`,
    sql`t.namespace = ${scope.namespace}`,
    sql`not t.hidden`,
    sql`t.parent is null`,
    sql`not exists (select 1 from ${engine.table('rollouts')} as o where o.run = u.key)`,
  ];
  if (runs.length > 0) conditions.push(engine.among(sql.ref('u.key'), await runKeys(scope, runs)));
  if (experimentId !== undefined)
    conditions.push(sql`u.experiment = ${await experimentKey(scope, { id: experimentId })}`);
  if (taskIds.length > 0) conditions.push(sql`t.task_id in (${sql.join(taskIds)})`);
  for (const [key, value] of runLabels)
    conditions.push(sql`${engine.hasPair(sql.ref<string>('u.labels'), key, value)}`);
  for (const [key, value] of labels) conditions.push(sql`${engine.hasPair(sql.ref<string>('t.labels'), key, value)}`);
  if (createTimeFrom !== undefined) conditions.push(sql`t.create_time >= ${bindTimeBound(createTimeFrom)}`);
  if (createTimeTo !== undefined) conditions.push(sql`t.create_time < ${bindTimeBound(createTimeTo)}`);
  return sql`where ${sql.join(conditions, sql` and `)}`;
}

function dimension({ aggregates, table }: Engine, key: SummaryKey): RawBuilder<unknown> {
  switch (key) {
    case 'TASK':
      return sql`t.task_id`;
    case 'RUN':
      return sql`cast(u.id as text)`;
    case 'EXPERIMENT':
      return sql`(select cast(e.id as text) from ${table('experiments')} as e where e.key = u.experiment)`;
    case 'STAGE_KIND':
    case 'MODEL_URI':
    case 'NUMBER':
      return sql`''`;
    default: {
      const own = aggregates.textAt(sql.ref('t.labels'), key.label);
      return sql`coalesce(${own}, ${aggregates.textAt(sql.ref('u.labels'), key.label)}, '')`;
    }
  }
}

/** Selects the trajectories with the values as the columns v0, v1, … */
function selected(
  engine: Engine,
  conditions: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): RawBuilder<unknown> {
  return sql`select ${columnsOf(values)} t.tree, t.key, t.next_step_number as steps, t.reward_sum as reward
    from ${engine.table('runs')} as u join ${engine.table('trajectories')} as t on t.run = u.key ${conditions}`;
}

function places(values: readonly RawBuilder<unknown>[]): RawBuilder<unknown>[] {
  return values.map((_, i) => sql.ref(`q.v${i}`));
}

interface CountedRow extends ValueColumns, RewardColumns {
  readonly trajectories: bigint;
  readonly steps: bigint;
}

async function countTrajectories(
  engine: Engine,
  conditions: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<CountedRow[]> {
  const x = sql`case when q.reward < ${IMMENSE} and q.reward > ${-IMMENSE} then q.reward end`;
  const { rows } = await sql<CountedRow>`with q as (${selected(engine, conditions, values)})
    select ${sql.join([...places(values), sql`count(*) as trajectories`])},
      cast(coalesce(sum(q.steps), 0) as bigint) as steps,
      ${rewardColumns(engine.aggregates, x, sql`case when q.reward <> 'NaN' then 1 end`)}
    from q ${groupedBy(places(values))}`.execute(engine.db);
  return rows.filter(({ trajectories }) => trajectories > 0n);
}

/** Returns the final rewards of every combination. */
async function readImmense(
  engine: Engine,
  conditions: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<Map<string, Rewards>> {
  const { rows } = await sql<RewardRow>`
    with q as (${selected(engine, conditions, values)})
    select ${sql.join([...places(values), sql`q.reward`])} from q where q.reward <> 'NaN'`.execute(engine.db);
  return rewardsByCombination(rows, values.length);
}

interface SumRow extends ValueColumns {
  readonly name: string;
  readonly total: number | null;
  readonly least: number;
  readonly most: number;
}

async function sumMetrics(
  engine: Engine,
  conditions: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<SumRow[]> {
  const { table, name, total, least, most } = engine.aggregates.metricSums(sql.ref('s.metric_sums'));
  const { rows } = await sql<SumRow>`with q as (${selected(engine, conditions, values)})
    select ${sql.join([...places(values), sql`${name} as name`])},
      sum(${total}) as total, min(${least}) as least, max(${most}) as most
    from q join ${engine.table('segments')} as s on s.tree = q.tree and s.trajectory = q.key cross join ${table}
    group by ${sql.join([...places(values), name])}`.execute(engine.db);
  return rows;
}
