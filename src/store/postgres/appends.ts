import type { CallScope } from '../contract/store.ts';
import type { ReadSlots } from '../sql/kit/reading/slots.ts';
import { sumColumns } from '../sql/kit/running_sums.ts';
import { SEGMENT_STATE_NAMES, SEGMENTS } from '../sql/kit/tables/steps.ts';
import { type NamedColumn, namesOf, type Row, valuesOf } from '../sql/kit/tables/table.ts';
import { END_UPDATE } from '../sql/log/append/heads.ts';
import type { Appends, SeenAppend } from '../sql/log/engine.ts';
import { stateNamesOf } from '../sql/log/segments.ts';
import { columnsOf } from './bulk_rows.ts';
import { encodeArray } from './copy.ts';
import type { Pool } from './pool.ts';
import { SCHEMA } from './schema.ts';
import { isWorthRetrying } from './transactions.ts';

export interface AppendsDeps {
  readonly pool: Pool;
  readonly slots: ReadSlots;
}

/** Appends in one statement, which is a transaction of its own. */
export class PostgresAppends implements Appends {
  readonly #deps: AppendsDeps;
  readonly #call: CallScope | undefined;

  constructor(deps: AppendsDeps, call: CallScope | undefined) {
    this.#deps = deps;
    this.#call = call;
  }

  async toSeen(decide: (now: string) => readonly SeenAppend[]): Promise<Map<bigint, string>> {
    const appends = decide(SET_BY_STATEMENT);
    if (appends.length === 0) return new Map();
    const { pool, slots } = this.#deps;
    slots.wrote();
    const lease = await pool.lease(this.#call?.signal);
    try {
      const { text, values } = appendStatement(appends);
      const { rows } = await lease.query(text, values);
      return new Map((rows as { key: bigint; now: string }[]).map(({ key, now }) => [key, now]));
    } catch (error) {
      if (isWorthRetrying(pool, error)) return new Map();
      throw error;
    } finally {
      lease.release();
    }
  }
}

/** The statement sets the commit time. */
const SET_BY_STATEMENT = '';

/** What the statement reads about each trajectory: where it is, how this process saw it, and its new end. */
const HEADS: readonly NamedColumn[] = [
  ...END_UPDATE.keys,
  { name: 'seen_end', type: 'int8' },
  { name: 'seen_epoch', type: 'int8' },
  ...END_UPDATE.columns,
];
const NEW_SEGMENTS = SEGMENTS.order.filter(({ name }) => name !== 'commit_time');

const SET_END = END_UPDATE.columns.map(({ name }) => `${name} = free.${name}`).join(', ');

/**
 * Locks the rows that are as this process last saw them, in the order of all transactions, and appends to these alone.
 * Postgres evaluates the conditions on the latest version of a row, even if another transaction has just changed it. A
 * row that another transaction holds is skipped, as in `Locks.heads`. The time is read after the last lock.
 *
 * `is true` keeps the planner from joining the segments with the locked rows: it would compare each with each.
 */
function appendText(rowsOf: RowsOf, named = ''): string {
  return `with free as materialized (
    select h.* from ${rowsOf(HEADS, 1)} as h (${namesOf(HEADS)})
    join ${SCHEMA}.trajectories as t on t.tree = h.tree and t.key = h.key
    where t.next_step_number = h.seen_end and t.writer_epoch = h.seen_epoch and t.status = 'RUNNING' and not t.hidden
    order by t.tree, t.key for no key update of t skip locked),
  clock as materialized (select clock_timestamp() as now, count(*) from free),
  moved as (
    update ${SCHEMA}.trajectories as t set ${SET_END}, update_time = clock.now from free, clock
    where t.tree = free.tree and t.key = free.key
    returning t.key, t.update_time as now),
  stored as (
    insert into ${SCHEMA}.segments (${namesOf(NEW_SEGMENTS)}, commit_time)
    select ${namesOf(NEW_SEGMENTS)}, clock.now from ${rowsOf(NEW_SEGMENTS, 1 + HEADS.length)} as s (${namesOf(NEW_SEGMENTS)}), clock
    where (s.trajectory in (select key from moved)) is true)${named}
  select key, now from moved`;
}

/** Returns SQL of rows that are parameters, from the one with this number on. */
type RowsOf = (columns: readonly NamedColumn[], first: number) => string;

/** Each parameter is an array. */
const inArrays: RowsOf = (columns, first) => {
  return `unnest(${columns.map(({ type }, i) => `$${first + i}::${type}[]`).join(', ')})`;
};

/** Any number of trajectories and segments. */
const APPEND_MANY = appendText(inArrays);

const NAMES = SEGMENT_STATE_NAMES.order;

/** Some segments are compressed and have states, so the index of names gets them. */
const APPEND_NAMED = appendText(
  inArrays,
  `,
  named as (
    insert into ${SCHEMA}.${SEGMENT_STATE_NAMES.name} (${namesOf(NAMES)})
    select ${namesOf(NAMES)} from ${inArrays(NAMES, 1 + HEADS.length + NEW_SEGMENTS.length)} as n (${namesOf(NAMES)})
    where (n.trajectory in (select key from moved)) is true)`,
);

/** One segment, as a client that waits for each ack causes it. Arrays would cost it more CPU. */
const APPEND_ONE = appendText((columns, first) => {
  return `(values (${columns.map(({ type }, i) => `$${first + i}::${type}`).join(', ')}))`;
});

/** Returns the statement that appends to the trajectories that are as this process last saw them. */
function appendStatement(appends: readonly SeenAppend[]): { readonly text: string; readonly values: unknown[] } {
  const heads = appends.map(({ seen: { nextStepNumber, writerEpoch, ...ref }, end, sums }) => ({
    ...ref,
    seen_end: nextStepNumber,
    seen_epoch: writerEpoch,
    next_step_number: end,
    ...sumColumns(sums),
  }));
  const segments = appends.flatMap((append) => append.segments);
  const names = stateNamesOf(segments);
  if (names.length > 0) {
    const values = [encodeColumns(heads, HEADS), encodeColumns(segments, NEW_SEGMENTS), encodeColumns(names, NAMES)];
    return { text: APPEND_NAMED, values: values.flat() };
  }
  const isOne = segments.length === 1;
  const valuesIn = isOne
    ? ([row]: readonly Row[], columns: readonly NamedColumn[]) => valuesOf(row!, columns)
    : encodeColumns;
  return {
    text: isOne ? APPEND_ONE : APPEND_MANY,
    values: [...valuesIn(heads, HEADS), ...valuesIn(segments, NEW_SEGMENTS)],
  };
}

function encodeColumns(rows: readonly Row[], columns: readonly NamedColumn[]): Buffer[] {
  return columnsOf(rows, columns).map((values, i) => encodeArray(columns[i]!.type, values));
}
