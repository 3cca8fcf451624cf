import { type RawBuilder, sql } from 'kysely';
import { runNotFound } from '../../../../domain/errors.ts';
import type { SummaryKey, SummaryRow } from '../../../../domain/summary.ts';
import type { SummaryFilter } from '../../../contract/summary.ts';
import { IMMENSE, IMMENSE_SUM } from '../../kit/aggregates.ts';
import type { Engine } from '../../kit/engine.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindTimeBound, readReal } from '../../kit/values.ts';
import { experimentKey } from '../experiment/rows.ts';
import { countGroups, readTasks } from './groups.ts';
import { momentsOf, type Rewards } from './moments.ts';
import {
  boundedSum,
  type RewardColumns,
  type RewardRow,
  readRewards,
  rewardColumns,
  rewardsByCombination,
} from './rewards.ts';
import { columnsOf, combinationOf, groupedBy, places, type ValueColumns, valuesOf } from './values.ts';

/** Counts rollouts by combination in one statement, and by combination, task and group outcome in another (M3). */
export async function summarize(
  scope: ReadScope,
  filter: SummaryFilter,
  by: readonly SummaryKey[],
): Promise<SummaryRow[]> {
  const { engine } = scope;
  const from = rolloutsOf(engine, by, await conditionsOf(scope, filter));
  const values = by.map((key) => engine.aggregates.bytewise(dimension(engine, key)));
  const [combinations, groups] = await Promise.all([
    countCombinations(engine, from, values),
    countGroups(engine, from, values),
  ]);
  const groupsOf = Map.groupBy(groups, (row) => combinationOf(row, by.length));
  const beyond = combinations.some(({ immense }) => immense > 0n);
  const rewardsOf = beyond ? await readImmense(engine, from, values) : undefined;
  return combinations.map((row) => {
    const combination = combinationOf(row, by.length);
    const tasks = readTasks(groupsOf.get(combination) ?? []);
    const rewards = rewardsOf === undefined ? readRewards(row) : (rewardsOf.get(combination) ?? momentsOf([]));
    return { ...readCombination(row, by.length), rewards, tasks };
  });
}

/**
 * Rollouts (`o`) of runs (`u`) that satisfy the conditions, joined with stages (`s`) and tasks (`k`) if dimensions need
 * them.
 */
function rolloutsOf(
  engine: Engine,
  by: readonly SummaryKey[],
  conditions: readonly RawBuilder<unknown>[],
): RawBuilder<unknown> {
  const stages = by.includes('STAGE_KIND') ? sql`join ${engine.table('stages')} as s on s.key = o.stage` : sql``;
  const tasks = by.includes('TASK') ? sql`left join ${engine.table('tasks')} as k on k.key = o.task` : sql``;
  return sql`from ${engine.table('rollouts')} as o join ${engine.table('runs')} as u on u.key = o.run ${stages} ${tasks}
    where ${sql.join(conditions, sql` and `)}`;
}

/** Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
async function conditionsOf(
  scope: ReadScope,
  { runs, experimentId, stageKinds, taskIds, runLabels, labels, createTimeFrom, createTimeTo }: SummaryFilter,
): Promise<RawBuilder<unknown>[]> {
  const { engine, namespace } = scope;
  const conditions = [sql`o.namespace = ${namespace}`, sql`u.namespace = ${namespace}`, sql`not u.hidden`];
  if (runs.length > 0) conditions.push(engine.among(sql.ref('o.run'), await runKeys(scope, runs)));
  if (experimentId !== undefined)
    conditions.push(sql`u.experiment = ${await experimentKey(scope, { id: experimentId })}`);
  if (stageKinds.length > 0) {
    conditions.push(sql`exists (select 1 from ${engine.table('stages')} as p
      where p.key = o.stage and p.kind in (${sql.join(stageKinds)}))`);
  }
  if (taskIds.length > 0) {
    conditions.push(sql`o.task in (select n.key from ${engine.table('tasks')} as n
      where n.namespace = ${namespace} and n.id in (${sql.join(taskIds)}))`);
  }
  for (const [key, value] of runLabels)
    conditions.push(sql`${engine.hasPair(sql.ref<string>('u.labels'), key, value)}`);
  for (const [key, value] of labels) conditions.push(sql`${engine.hasPair(sql.ref<string>('o.labels'), key, value)}`);
  if (createTimeFrom !== undefined) conditions.push(sql`o.create_time >= ${bindTimeBound(createTimeFrom)}`);
  if (createTimeTo !== undefined) conditions.push(sql`o.create_time < ${bindTimeBound(createTimeTo)}`);
  return conditions;
}

export async function runKeys({ db, namespace }: ReadScope, ids: readonly string[]): Promise<bigint[]> {
  const rows = await db
    .selectFrom('runs')
    .select(['id', 'key'])
    .where('namespace', '=', namespace)
    .where('id', 'in', ids)
    .where('hidden', '=', 0)
    .execute();
  const missing = ids.find((id) => rows.every((row) => row.id !== id));
  if (missing !== undefined) throw runNotFound(missing);
  return rows.map(({ key }) => key);
}

function dimension({ aggregates, table }: Engine, key: SummaryKey): RawBuilder<unknown> {
  switch (key) {
    case 'TASK':
      return sql`coalesce(k.id, '')`;
    case 'RUN':
      return sql`cast(u.id as text)`;
    case 'EXPERIMENT':
      return sql`(select cast(x.id as text) from ${table('experiments')} as x where x.key = u.experiment)`;
    case 'STAGE_KIND':
      return sql`s.kind`;
    case 'MODEL_URI':
      return sql`o.model_uri`;
    case 'NUMBER':
      return sql`cast(o.number as text)`;
    default: {
      const own = aggregates.textAt(sql.ref('o.labels'), key.label);
      return sql`coalesce(${own}, ${aggregates.textAt(sql.ref('u.labels'), key.label)}, '')`;
    }
  }
}

const TERMINAL = sql`status in ('COMPLETED', 'FAILED', 'CANCELLED')`;

/** Rollouts that count in a success rate (M3). */
const JUDGED = sql`(status = 'FAILED' or (status = 'COMPLETED' and success is not null))`;

/**
 * A limit without effect. It prevents engines from evaluating the expressions of the subquery once for each column that
 * uses them.
 */
const ALL = 2n ** 63n - 1n;

interface CombinationRow extends ValueColumns, RewardColumns {
  readonly rollouts: bigint;
  readonly pending: bigint;
  readonly live: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  readonly judged: bigint;
  readonly successes: bigint;
  readonly turns: bigint;
  readonly durations: bigint;
  readonly seconds: number | null;
  readonly queue_times: bigint;
  readonly queue_seconds: number | null;
  readonly tokens: bigint;
  readonly token_sum: number | null;
  readonly token_min: number | null;
  readonly token_max: number | null;
}

async function countCombinations(
  engine: Engine,
  from: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<CombinationRow[]> {
  const { elapsed, seconds, numberAt } = engine.aggregates;
  const having = (condition: RawBuilder<unknown>) => sql`count(case when ${condition} then 1 end)`;
  const tokens = sql`case when o.metrics like '%"tokens"%' then ${numberAt(sql.ref('o.metrics'), 'tokens')} end`;
  const x = sql.ref('x');
  const ofAttempt = (value: RawBuilder<unknown>) => sql`(select ${value} from ${engine.table('attempts')} as a
    where a.rollout = o.key and a.number = o.attempt)`;
  const took = ofAttempt(elapsed(sql.ref('a.claim_time'), sql.ref('a.end_time')));
  const queued = ofAttempt(elapsed(sql.ref('a.claimable_time'), sql.ref('a.claim_time')));
  const { rows } = await sql<CombinationRow>`
    with q as (select ${columnsOf(values)} o.status, o.success, o.turns, o.${TERMINAL} as ended,
      case when o.${TERMINAL} and o.reward < ${IMMENSE} and o.reward > ${-IMMENSE} then o.reward end as x,
      case when o.${TERMINAL} and o.reward <> 'NaN' then 1 end as rewarded, case when o.${TERMINAL} then ${took} end as took,
      case when o.${TERMINAL} then ${queued} end as queued,
      case when o.${TERMINAL} then ${tokens} end as t ${from} limit ${ALL})
    select ${sql.join([...places(values), sql`count(*) as rollouts`])},
      ${having(sql`status = 'PENDING'`)} as pending, ${having(sql`status in ('INITIALIZING', 'RUNNING')`)} as live,
      ${having(sql`status = 'COMPLETED'`)} as completed, ${having(sql`status = 'FAILED'`)} as failed,
      ${having(sql`status = 'CANCELLED'`)} as cancelled, ${having(JUDGED)} as judged,
      ${having(sql`status = 'COMPLETED' and success`)} as successes,
      ${rewardColumns(engine.aggregates, x, sql.ref('rewarded'))},
      cast(coalesce(sum(case when ended then turns end), 0) as bigint) as turns, count(took) as durations,
      ${seconds(sql.ref('took'))} as seconds, count(queued) as queue_times, ${seconds(sql.ref('queued'))} as queue_seconds, count(t) as tokens,
      sum(case when abs(t) < ${IMMENSE_SUM} then t end) as token_sum, min(t) as token_min, max(t) as token_max
    from q ${groupedBy(places(values))}`.execute(engine.db);
  return rows.filter(({ rollouts }) => rollouts > 0n);
}

function readCombination(row: CombinationRow, count: number): Omit<SummaryRow, 'rewards' | 'tasks'> {
  const { pending, live, completed, failed, cancelled, judged, successes, turns, durations, tokens } = row;
  return {
    values: valuesOf(row, count),
    pending,
    live,
    completed,
    failed,
    cancelled,
    judged,
    successes,
    turns,
    durations: { count: durations, seconds: readReal(row.seconds ?? 0) },
    queueTimes: { count: row.queue_times, seconds: readReal(row.queue_seconds ?? 0) },
    tokens: { count: tokens, sum: boundedSum(row.token_sum, row.token_min, row.token_max) },
  };
}

/** Returns all rewards of every combination. */
async function readImmense(
  engine: Engine,
  from: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<Map<string, Rewards>> {
  const { rows } = await sql<RewardRow>`
    select ${columnsOf(values)} o.reward ${from} and o.${TERMINAL} and o.reward <> 'NaN'`.execute(engine.db);
  return rewardsByCombination(rows, values.length);
}
