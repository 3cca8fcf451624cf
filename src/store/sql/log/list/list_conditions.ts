import { type RawBuilder, sql } from 'kysely';
import { formatInstant } from '../../../../domain/instant.ts';
import type { StepCursor, StepFilter } from '../../../contract/step.ts';
import type { Engine } from '../../kit/engine.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindTimeBound } from '../../kit/values.ts';
import type { WantedNames } from '../read/named_segments.ts';
import { labelName, runBegin, runEnd, runName, runsIn } from '../read/step_runs.ts';
import type { Rank, SearchOrder } from './listed_step.ts';

/** Trajectories of a task, a run or an experiment. */
export type Belonging = Exclude<StepFilter['of'], { readonly tree: bigint }>;

/** Condition on a trajectory, by default `o`: it is visible, and belongs to the task, run or experiment. */
export function belongs({ engine, namespace }: ReadScope, of: Belonging, alias = 'o'): RawBuilder<unknown> {
  const column = (name: string) => sql.ref(`${alias}.${name}`);
  const visible = sql`${column('namespace')} = ${namespace} and ${column('hidden')} = ${0}`;
  if ('taskId' in of) return sql`${visible} and ${column('task_id')} = ${of.taskId}`;
  const [noun, table, id] =
    'runId' in of ? (['run', 'runs', of.runId] as const) : (['experiment', 'experiments', of.experimentId] as const);
  return sql`${visible} and ${column(noun)} = (select b.key from ${engine.sql.table(table)} as b
    where b.namespace = ${namespace} and b.id = ${id} and not b.hidden)`;
}

/**
 * Conditions on a step `s` of the view `steps`. They need the tables of `matchingRuns`; if `beginsWithRuns`, the table
 * `firstRuns` is joined as `m`.
 */
export function stepConditions(
  engine: Engine,
  where: Omit<StepFilter, 'of'>,
  beginsWithRuns = false,
): RawBuilder<unknown>[] {
  const conditions = runFilters(where).map((_, i) =>
    i === 0 && beginsWithRuns && engine.sql.joinsRanges ? engine.sql.isInRanges(INDEX) : isInRun(engine, runTable(i)),
  );
  if (where.terminalOnly === true) conditions.push(sql`(s.terminated = ${1} or s.truncated = ${1})`);
  // SQLite stores the text 'NaN' and Postgres its own NaN; both would sort it above every number.
  if (where.minReward !== undefined) conditions.push(sql`s.reward <> 'NaN' and s.reward >= ${where.minReward}`);
  if (where.maxReward !== undefined) conditions.push(sql`s.reward <> 'NaN' and s.reward <= ${where.maxReward}`);
  if (where.commitTimeFrom !== undefined) conditions.push(sql`s.commit_time >= ${bindTimeBound(where.commitTimeFrom)}`);
  if (where.commitTimeTo !== undefined) conditions.push(sql`s.commit_time < ${bindTimeBound(where.commitTimeTo)}`);
  return conditions;
}

/** What a filter asks of the names of states, or of the labels, of a step. */
interface RunFilter extends Pick<WantedNames, 'column'> {
  /** The step must have one of these; `true` for any. */
  readonly names: WantedNames['names'] | true;
}

function runFilters({ hasState, anyOfStates, labels }: Omit<StepFilter, 'of'>): RunFilter[] {
  const states = [
    ...(hasState === undefined ? [] : [hasState === true || [hasState]]),
    ...(anyOfStates ? [anyOfStates] : []),
  ];
  return [
    ...states.map((names) => ({ column: 'state_names', names }) as const),
    ...Array.from(labels ?? [], ([key, value]) => ({ column: 'labels', names: [labelName(key, value)] }) as const),
  ];
}

function runTable(i: number): RawBuilder<unknown> {
  return sql.ref(`m${i}`);
}

/** The segments with a run that matches the first filter, a row for each; with the runs if `joinsRanges`. */
export function firstRuns({ sql: { joinsRanges } }: Engine): RawBuilder<unknown> {
  return joinsRanges ? runTable(0) : sql`(select distinct tree, trajectory, first_step_number from ${runTable(0)})`;
}

/**
 * A common table expression for each filter of states and labels: the runs that match it, of the segments `e` of a
 * `from` clause with its conditions. So each segment's list is read once, and not for each of its steps.
 */
export function matchingRuns(
  engine: Engine,
  where: Omit<StepFilter, 'of'>,
  segments: { readonly from: RawBuilder<unknown>; readonly of: RawBuilder<unknown> },
): RawBuilder<unknown> {
  const tables = runFilters(where).map(({ column, names }, i) => {
    const runs = runsIn(engine, sql.ref<string>(`e.${column}`), 'r');
    const matches = names === true ? sql`` : sql`and ${engine.sql.amongTexts(runName('r'), names)}`;
    const key = sql`e.tree, e.trajectory, e.first_step_number`;
    const { columns, grouping } = engine.sql.ranges(runBegin('r'), runEnd('r'), key);
    return sql`, ${runTable(i)} as materialized (
      select ${key}, ${columns}
      from ${segments.from} cross join ${runs}
      where ${segments.of} ${matches} ${grouping})`;
  });
  return sql.join(tables, sql` `);
}

/** Index of a step `s` in its segment. */
const INDEX = sql`s.step_number - s.first_step_number`;

/** Whether a step `s` is in one of the runs. */
function isInRun(engine: Engine, runs: RawBuilder<unknown>): RawBuilder<unknown> {
  return sql`exists (select 1 from ${runs} as m
    where m.tree = s.tree and m.trajectory = s.trajectory and m.first_step_number = s.first_step_number
      and ${engine.sql.isInRanges(INDEX)})`;
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

/** Whether a filter asks for states or labels. */
export function asksForRuns(where: Omit<StepFilter, 'of'>): boolean {
  return runFilters(where).length > 0;
}

/** Names that a segment must have, by which the index of names finds it. */
export function wantedNames(where: Omit<StepFilter, 'of'>): readonly WantedNames[] {
  return runFilters(where).flatMap(({ column, names }) => (names === true ? [] : [{ column, names }]));
}

/** Latest commit time of the steps of a segment `b`. */
export const LAST_COMMIT = sql`coalesce(b.last_commit_time, b.commit_time)`;

/** Conditions on a segment `b`, which its steps cannot match otherwise. */
export function segmentConditions(where: Omit<StepFilter, 'of'>): RawBuilder<unknown>[] {
  const conditions = rewardConditions('b', where);
  if (where.terminalOnly === true) conditions.push(sql`b.ends <> '{}'`);
  if (where.hasState !== undefined || where.anyOfStates !== undefined) conditions.push(sql`b.state_names <> '[]'`);
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
