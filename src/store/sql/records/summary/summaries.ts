import { type RawBuilder, sql } from 'kysely';
import type { SummaryKey, SummaryRow, TaskGroups } from '../../../../domain/summary.ts';
import type { SummaryFilter } from '../../../contract/summary.ts';
import type { Engine } from '../../kit/engine.ts';
import { IMMENSE, IMMENSE_SUM } from '../../kit/expressions.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readReal } from '../../kit/values.ts';
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

/** Counts rollouts by combination in one statement, and by combination, task and group outcome in another (M3). */
export async function summarize(
  scope: ReadScope,
  filter: SummaryFilter,
  by: readonly SummaryKey[],
): Promise<SummaryRow[]> {
  const { engine } = scope;
  const from = rolloutsOf(engine, by, await rolloutConditions(scope, filter));
  const values = dimensionsOf(engine, by, 'o', {
    TASK: sql`coalesce(k.id, '')`,
    STAGE_KIND: sql`s.kind`,
    MODEL_URI: sql`o.model_uri`,
    NUMBER: sql`cast(o.number as text)`,
  });
  const [combinations, groups] = await Promise.all([
    countCombinations(engine, from, values),
    countGroups(engine, from, values),
  ]);
  const groupsOf = Map.groupBy(groups, (row) => combinationOf(row, by.length));
  const rewards = await rewardsOf(combinations, by.length, () => readAllRewards(engine, from, values));
  return combinations.map((row, i) => {
    const tasks = readTasks(groupsOf.get(combinationOf(row, by.length)) ?? []);
    return { ...readCombination(row, by.length), rewards: rewards[i]!, tasks };
  });
}

/** Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
async function rolloutConditions(scope: ReadScope, filter: SummaryFilter): Promise<RawBuilder<unknown>[]> {
  const { engine, namespace } = scope;
  const { stageKinds, taskIds } = filter;
  const conditions = await conditionsOf(scope, filter, 'o', 'o.run');
  if (stageKinds.length > 0) {
    conditions.push(sql`exists (select 1 from ${engine.sql.table('stages')} as p
      where p.key = o.stage and p.kind in (${sql.join(stageKinds)}))`);
  }
  if (taskIds.length > 0) {
    conditions.push(sql`o.task in (select n.key from ${engine.sql.table('tasks')} as n
      where n.namespace = ${namespace} and n.id in (${sql.join(taskIds)}))`);
  }
  return conditions;
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
  const stages = by.includes('STAGE_KIND') ? sql`join ${engine.sql.table('stages')} as s on s.key = o.stage` : sql``;
  const tasks = by.includes('TASK') ? sql`left join ${engine.sql.table('tasks')} as k on k.key = o.task` : sql``;
  return sql`from ${engine.sql.table('rollouts')} as o join ${engine.sql.table('runs')} as u on u.key = o.run ${stages} ${tasks}
    where ${sql.join(conditions, sql` and `)}`;
}

const TERMINAL = sql`status in ('COMPLETED', 'FAILED', 'CANCELLED')`;

/** Rollouts that count in a success rate (M3). */
const JUDGED = sql`(status = 'FAILED' or (status = 'COMPLETED' and success is not null))`;

/**
 * A limit without effect. It prevents engines from evaluating the expressions of the subquery once for each column that
 * uses them.
 */
const ALL = 2n ** 63n - 1n;

interface CombinationRow extends RewardColumns {
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
  const ofAttempt = (value: RawBuilder<unknown>) => sql`(select ${value} from ${engine.sql.table('attempts')} as a
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
async function readAllRewards(
  engine: Engine,
  from: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<RewardRow[]> {
  const { rows } = await sql<RewardRow>`
    select ${columnsOf(values)} o.reward ${from} and o.${TERMINAL} and o.reward <> 'NaN'`.execute(engine.db);
  return rows;
}

/** Rollouts of one combination and task whose groups have the same outcome. */
interface GroupsRow extends ValueColumns {
  readonly task: bigint;
  readonly groups: bigint;
  readonly trials: bigint;
  readonly successes: bigint;
  /** For a CONTINUE group: 1 if it counts, else 0. Null for a CANCEL_PENDING group, which has the columns below. */
  readonly counts: bigint | number | null;
  readonly siblings: bigint | null;
  readonly first_success: bigint | null;
  readonly first_unknown: bigint | null;
}

/**
 * Counts the rollouts of tasks by combination and group outcome. All rollouts of a group determine its outcome,
 * whatever the conditions.
 */
async function countGroups(
  engine: Engine,
  from: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<GroupsRow[]> {
  const { plannedGroupSize } = engine.aggregates;
  const known = sql`(r.status = 'FAILED' or (r.status = 'COMPLETED' and r.success is not null))`;
  const columns = ['task', 'counts', 'siblings', 'first_success', 'first_unknown'].map((name) => sql.ref(name));
  const { rows } = await sql<GroupsRow>`
    with q as (select ${columnsOf(values)} o.task, o.group_key, o.status, o.success ${from} and o.task is not null),
    n as (
      select g.key, g.on_success, ${plannedGroupSize(sql.ref('u.plan'), sql.ref('s.kind'))} as size
      from ${engine.sql.table('groups')} as g join ${engine.sql.table('runs')} as u on u.key = g.run
        join ${engine.sql.table('stages')} as s on s.key = g.stage
      where g.key in (select group_key from q)
    ),
    whole as (
      select n.key, case when count(*) >= n.size and count(*) = count(case when ${known} then 1 end) then 1 else 0 end as counts
      from n join ${engine.sql.table('rollouts')} as r on r.group_key = n.key
      where n.on_success = 'CONTINUE' group by n.key, n.size
    ),
    queued as (
      select n.key, row_number() over (partition by n.key order by r.priority desc, r.key) as place,
        case when ${known} then 1 else 0 end as known, case when r.status = 'COMPLETED' and r.success then 1 else 0 end as succeeded
      from n join ${engine.sql.table('rollouts')} as r on r.group_key = n.key where n.on_success = 'CANCEL_PENDING'
    ),
    came as (
      select key, counts, null as siblings, null as first_success, null as first_unknown from whole
      union all
      select key, null, count(*), min(case when succeeded = 1 then place end), min(case when known = 0 then place end)
      from queued group by key
    )
    select ${sql.join([...places(values), ...columns])}, count(distinct group_key) as groups, count(*) as trials,
      count(case when status = 'COMPLETED' and success then 1 end) as successes
    from q join came on came.key = q.group_key ${groupedBy([...places(values), ...columns])}`.execute(engine.db);
  return rows;
}

type Changing<T> = { -readonly [K in keyof T]: T[K] };

/** Returns one entry for each task of the rows of a combination. */
function readTasks(rows: readonly GroupsRow[]): TaskGroups[] {
  return [...Map.groupBy(rows, ({ task }) => task).values()].map(readTask);
}

function readTask(rows: readonly GroupsRow[]): TaskGroups {
  const task: Changing<TaskGroups> = { groups: 0n, trials: 0n, successes: 0n, unfinished: 0n, stopping: [] };
  for (const { counts, groups, trials, successes, siblings, first_success, first_unknown } of rows) {
    if (counts === null) {
      const places = { firstSuccess: first_success ?? undefined, firstUnknown: first_unknown ?? undefined };
      task.stopping = [...task.stopping, { groups, siblings: siblings ?? 0n, ...places }];
    } else if (Number(counts) === 0) task.unfinished += groups;
    else {
      task.groups += groups;
      task.trials += trials;
      task.successes += successes;
    }
  }
  return task;
}
