import type { CallScope } from '../contract/store.ts';
import type { ReadSlots } from '../sql/kit/reading/slots.ts';
import { sumColumns } from '../sql/kit/running_sums.ts';
import { SEGMENT_NAMES, SEGMENTS } from '../sql/kit/tables/steps.ts';
import { type NamedColumn, namesOf, valuesOf } from '../sql/kit/tables/table.ts';
import { END_UPDATE } from '../sql/log/append/heads.ts';
import type { Appends, SeenAppend } from '../sql/log/engine.ts';
import { indexedNamesOf } from '../sql/log/segments.ts';
import { columnsOf } from './bulk_rows.ts';
import { encodeArray, encodeRows } from './copy.ts';
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

  async toSeen(
    decide: (now: string) => readonly SeenAppend[],
    committed: (times: ReadonlyMap<bigint, string>) => void,
  ): Promise<Map<bigint, string>> {
    const { pool, slots } = this.#deps;
    const { era } = pool;
    const appends = decide(SET_BY_STATEMENT);
    if (appends.length === 0) return new Map();
    slots.wrote();
    const lease = await pool.leaseForAppend(this.#call);
    try {
      // Another history may use the row keys for other trajectories.
      if (pool.era !== era) return new Map();
      const { text, values } = appendStatement(appends, lease.session.appendedSegment);
      const { rows } = await lease.query(text, values);
      const times = new Map((rows as { key: bigint; now: string }[]).map(({ key, now }) => [key, now]));
      committed(times);
      return times;
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

const SEGMENT = SEGMENTS.order.filter(({ name }) => name !== 'commit_time');
const END = END_UPDATE.columns.map((column) => ({ ...column, name: `trajectory_${column.name}` }));
/** The columns of the type `appended_segment`. */
const APPENDED: readonly NamedColumn[] = [...SEGMENT, ...END];
const NAMES = SEGMENT_NAMES.order;

/**
 * Returns a condition: the row of a trajectory is as this process last saw it. For further segments of the same append
 * it is false.
 */
function isSeen(segment: (name: string) => string): string {
  return `t.tree = ${segment('tree')} and t.key = ${segment('trajectory')} and t.next_step_number = ${segment('first_step_number')}
      and t.writer_epoch = ${segment('writer_epoch')} and t.status = 'RUNNING' and not t.hidden`;
}

function setEnd(value: (name: string) => string): string {
  return END_UPDATE.columns.map(({ name }, i) => `${name} = ${value(END[i]!.name)}`).join(', ');
}

/**
 * Locks the rows that are as this process last saw them, in the order of all transactions, and appends to these alone.
 * Postgres evaluates the conditions on the latest version of a row, even if another transaction has just changed it. A
 * row that another transaction holds is skipped, as in `Locks.heads`. The time is read after the last lock.
 *
 * `is true` keeps the planner from joining the segments with the moved rows: it would compare each with each.
 */
function appendText(named = ''): string {
  return `with free as materialized (
    select ${namesOf(END)}, t.ctid as place from unnest($1::${SCHEMA}.appended_segment[]) as s
    join ${SCHEMA}.trajectories as t on ${isSeen((name) => `s.${name}`)}
    order by t.tree, t.key for no key update of t skip locked),
  clock as materialized (select clock_timestamp() as now, count(*) from free),
  moved as (
    update ${SCHEMA}.trajectories as t set ${setEnd((name) => `free.${name}`)}, update_time = (select now from clock)
    from free where t.ctid = free.place returning t.key),
  stored as (
    insert into ${SCHEMA}.segments (${namesOf(SEGMENT)}, commit_time)
    select ${namesOf(SEGMENT)}, (select now from clock) from unnest($1::${SCHEMA}.appended_segment[])
    where (trajectory in (select key from moved)) is true)${named}
  select key, (select now from clock) as now from moved`;
}

/** Any number of segments. */
const APPEND_MANY = appendText();

/** Some segments are compressed and have states or labels, so the index of names gets them. */
const APPEND_NAMED = appendText(`,
  named as (
    insert into ${SCHEMA}.${SEGMENT_NAMES.name} (${namesOf(NAMES)})
    select ${namesOf(NAMES)} from unnest(${NAMES.map(({ type }, i) => `$${2 + i}::${type}[]`).join(', ')}) as n (${namesOf(NAMES)})
    where (n.trajectory in (select key from moved)) is true)`);

/** One segment, as a client that waits for each ack causes it. */
const APPEND_ONE = appendOneText();

function appendOneText(): string {
  const parameter = (name: string) => {
    const i = APPENDED.findIndex((column) => column.name === name);
    return `$${i + 1}::${APPENDED[i]!.type}`;
  };
  return `with free as materialized (
    select t.ctid as place from ${SCHEMA}.trajectories as t where ${isSeen(parameter)}
    for no key update of t skip locked),
  moved as (
    update ${SCHEMA}.trajectories as t set ${setEnd(parameter)}, update_time = clock_timestamp()
    from free where t.ctid = free.place returning t.key, t.update_time as now),
  stored as (
    insert into ${SCHEMA}.segments (${namesOf(SEGMENT)}, commit_time)
    select ${SEGMENT.map(({ name }) => parameter(name)).join(', ')}, now from moved)
  select key, now from moved`;
}

/**
 * Returns the statement that appends to the trajectories that are as this process last saw them. `typeId` is the object
 * id of the type `appended_segment`.
 */
function appendStatement(
  appends: readonly SeenAppend[],
  typeId: number,
): { readonly text: string; readonly values: unknown[] } {
  const rows = appends.flatMap(({ end, sums, segments }) => {
    const ends = valuesOf({ next_step_number: end, ...sumColumns(sums) }, END_UPDATE.columns);
    return segments.map((segment) => [...valuesOf(segment, SEGMENT), ...ends]);
  });
  const names = indexedNamesOf(appends.flatMap((append) => append.segments));
  if (names.length === 0 && rows.length === 1) return { text: APPEND_ONE, values: rows[0]! };
  const values = [encodeRows(typeId, APPENDED, rows)];
  if (names.length === 0) return { text: APPEND_MANY, values };
  return {
    text: APPEND_NAMED,
    values: [...values, ...columnsOf(names, NAMES).map((column, i) => encodeArray(NAMES[i]!.type, column))],
  };
}
