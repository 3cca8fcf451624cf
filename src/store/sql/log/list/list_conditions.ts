import { type RawBuilder, sql } from 'kysely';
import { formatInstant } from '../../../../domain/instant.ts';
import type { StepCursor, StepFilter } from '../../../contract/step.ts';
import type { Engine } from '../../kit/engine.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindTimeBound } from '../../kit/values.ts';
import { labelName, runBegin, runEnd, runName, runsIn } from '../read/step_runs.ts';
import type { Rank, SearchOrder } from './listed_step.ts';

/** Trajectories of a task, a run or an experiment. */
export type Belonging = Exclude<StepFilter['of'], { readonly tree: bigint }>;

/** Condition on the trajectory `o`: it is visible, and belongs to the task, run or experiment. */
export function belongs({ engine, namespace }: ReadScope, of: Belonging): RawBuilder<unknown> {
  const visible = sql`o.namespace = ${namespace} and o.hidden = ${0}`;
  if ('taskId' in of) return sql`${visible} and o.task_id = ${of.taskId}`;
  const [column, table, id] =
    'runId' in of ? (['run', 'runs', of.runId] as const) : (['experiment', 'experiments', of.experimentId] as const);
  return sql`${visible} and ${sql.ref(`o.${column}`)} = (select b.key from ${engine.sql.table(table)} as b
    where b.namespace = ${namespace} and b.id = ${id} and not b.hidden)`;
}

/** Conditions on a step `s` of the view `steps`. */
export function stepConditions(engine: Engine, where: Omit<StepFilter, 'of'>): RawBuilder<unknown>[] {
  const conditions: RawBuilder<unknown>[] = [];
  if (where.terminalOnly === true) conditions.push(sql`(s.terminated = ${1} or s.truncated = ${1})`);
  if (where.hasState !== undefined) conditions.push(isInRun(engine, 'state_names', where.hasState));
  for (const [key, value] of where.labels ?? []) conditions.push(isInRun(engine, 'labels', labelName(key, value)));
  // SQLite stores the text 'NaN' and Postgres its own NaN; both would sort it above every number.
  if (where.minReward !== undefined) conditions.push(sql`s.reward <> 'NaN' and s.reward >= ${where.minReward}`);
  if (where.maxReward !== undefined) conditions.push(sql`s.reward <> 'NaN' and s.reward <= ${where.maxReward}`);
  if (where.commitTimeFrom !== undefined) conditions.push(sql`s.commit_time >= ${bindTimeBound(where.commitTimeFrom)}`);
  if (where.commitTimeTo !== undefined) conditions.push(sql`s.commit_time < ${bindTimeBound(where.commitTimeTo)}`);
  return conditions;
}

/** Whether a step `s` has a state of the name, or any (`true`), or a label. */
function isInRun(engine: Engine, column: 'state_names' | 'labels', name: string | true): RawBuilder<unknown> {
  const index = sql`s.step_number - s.first_step_number`;
  const runs = sql<string>`(select ${sql.ref(`e.${column}`)} from ${engine.sql.table('segments')} as e
    where e.tree = s.tree and e.trajectory = s.trajectory and e.first_step_number = s.first_step_number)`;
  return sql`exists (select 1 from ${runsIn(engine, runs, 'r')}
    where ${runBegin('r')} <= ${index} and ${runEnd('r')} > ${index}
      ${name === true ? sql`` : sql`and ${runName('r')} = ${name}`})`;
}

/**
 * Conditions on the bounds of the rewards of a trajectory or a segment, which its steps cannot match otherwise.
 */
export function rewardConditions(of: 'o' | 'b', where: Omit<StepFilter, 'of'>): RawBuilder<unknown>[] {
  const [least, most] = [sql.ref(`${of}.min_reward`), sql.ref(`${of}.max_reward`)];
  const conditions: RawBuilder<unknown>[] = [];
  if (where.minReward !== undefined) conditions.push(sql`${most} >= ${where.minReward}`);
  if (where.maxReward !== undefined) conditions.push(sql`${least} <= ${where.maxReward}`);
  return conditions;
}

/** Whether a filter asks for states or labels, of which there are indexes. */
export function asksForRuns({ hasState, labels }: Omit<StepFilter, 'of'>): boolean {
  return hasState !== undefined || (labels?.size ?? 0) > 0;
}

/** Latest commit time of the steps of a segment `b`. */
export const LAST_COMMIT = sql`coalesce(b.last_commit_time, b.commit_time)`;

/** Conditions on a segment `b`, which its steps cannot match otherwise. */
export function segmentConditions(where: Omit<StepFilter, 'of'>): RawBuilder<unknown>[] {
  const conditions = rewardConditions('b', where);
  if (where.terminalOnly === true) conditions.push(sql`b.ends <> '{}'`);
  if (where.hasState !== undefined) conditions.push(sql`b.state_names <> '[]'`);
  if ((where.labels?.size ?? 0) > 0) conditions.push(sql`b.labels <> '[]'`);
  if (where.commitTimeFrom !== undefined)
    conditions.push(sql`${LAST_COMMIT} >= ${bindTimeBound(where.commitTimeFrom)}`);
  if (where.commitTimeTo !== undefined) conditions.push(sql`b.commit_time < ${bindTimeBound(where.commitTimeTo)}`);
  return conditions;
}

/** Returns the value of the last step of a page in an order, or undefined if the order does not contain that step. */
export function cursorRank(
  { by }: SearchOrder,
  { key, stepNumber, reward, commitTime, metric }: StepCursor,
): Rank | undefined {
  const place = { key, stepNumber };
  const isRanked = reward !== undefined && !Number.isNaN(reward);
  switch (by) {
    case 'NUMBER':
      return { value: stepNumber, ...place };
    case 'TIME':
      return { value: formatInstant(commitTime, 6), ...place };
    case 'REWARD':
      return isRanked ? { value: reward, ...place } : undefined;
    case 'METRIC':
      return metric === undefined ? undefined : { value: metric, ...place };
    case 'UNRANKED':
      return isRanked ? undefined : { value: 0, ...place };
  }
}
