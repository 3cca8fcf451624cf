import { type RawBuilder, sql } from 'kysely';
import type { SummaryKey } from '../../../../domain/summary.ts';
import type { SummaryFilter } from '../../../contract/summary.ts';
import type { Engine } from '../../kit/engine.ts';
import { labelsAndTimes } from '../../kit/list_order.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { experimentKey } from '../experiment/experiments.ts';
import { runKeys } from '../run/rows.ts';

/** Alias of the rows that a summary counts: rollouts (`o`) or trajectories (`t`). Their runs are `u`. */
type Counted = 'o' | 't';

/**
 * Returns the conditions that summaries of rollouts and of trajectories share. `run` is the column with the key of the
 * run. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND.
 */
export async function conditionsOf(
  scope: ReadScope,
  filter: SummaryFilter,
  counted: Counted,
  run: string,
): Promise<RawBuilder<unknown>[]> {
  const { engine, namespace } = scope;
  const { runs, experimentId, runLabels } = filter;
  const conditions: RawBuilder<unknown>[] = [
    sql`u.namespace = ${namespace}`,
    sql`not u.hidden`,
    sql`${sql.ref(`${counted}.namespace`)} = ${namespace}`,
    ...labelsAndTimes(engine, 'u', { labels: runLabels }),
    ...labelsAndTimes(engine, counted, filter),
  ];
  if (runs.length > 0) conditions.push(engine.sql.among(sql.ref(run), await runKeys(scope, runs)));
  if (experimentId !== undefined)
    conditions.push(sql`u.experiment = ${await experimentKey(scope, { id: experimentId })}`);
  return conditions;
}

/** Dimensions whose values differ between rollouts and trajectories. */
type OwnKey = Exclude<Extract<SummaryKey, string>, 'RUN' | 'EXPERIMENT'>;

/** Returns the value of each dimension, in the order of `by`. */
export function dimensionsOf(
  { aggregates, sql: { table } }: Engine,
  by: readonly SummaryKey[],
  counted: Counted,
  own: Readonly<Record<OwnKey, RawBuilder<unknown>>>,
): RawBuilder<string>[] {
  const dimension = (key: SummaryKey): RawBuilder<unknown> => {
    if (key === 'RUN') return sql`cast(u.id as text)`;
    if (key === 'EXPERIMENT')
      return sql`(select cast(x.id as text) from ${table('experiments')} as x where x.key = u.experiment)`;
    if (typeof key === 'string') return own[key];
    const labels = [sql.ref(`${counted}.labels`), sql.ref('u.labels')];
    return sql`coalesce(${sql.join(labels.map((each) => aggregates.textAt(each, key.label)))}, '')`;
  };
  return by.map((key) => aggregates.bytewise(dimension(key)));
}

/** The values of a combination, as the columns v0, v1, … */
export interface ValueColumns {
  readonly [value: `v${number}`]: string;
}

/** Selects the values as the columns v0, v1, … */
export function columnsOf(values: readonly RawBuilder<unknown>[]): RawBuilder<unknown> {
  return sql.join(
    values.map((value, i) => sql`${value} as ${sql.ref(`v${i}`)}, `),
    sql``,
  );
}

export function groupedBy(columns: readonly RawBuilder<unknown>[]): RawBuilder<unknown> {
  return columns.length === 0 ? sql`` : sql`group by ${sql.join(columns)}`;
}

/** References to the columns of the values. */
export function places(values: readonly RawBuilder<unknown>[]): RawBuilder<unknown>[] {
  return values.map((_, i) => sql.ref(`v${i}`));
}

export function valuesOf(row: ValueColumns, count: number): string[] {
  return Array.from({ length: count }, (_, i) => row[`v${i}`] ?? '');
}

/** A key for the combination of values in a row. */
export function combinationOf(row: ValueColumns, count: number): string {
  return JSON.stringify(valuesOf(row, count));
}
