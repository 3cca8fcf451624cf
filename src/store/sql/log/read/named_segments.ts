import { type RawBuilder, sql } from 'kysely';
import type { Engine } from '../../kit/engine.ts';
import { runName, runsIn, stateEntry } from './step_runs.ts';

/** What a segment must have: a state with one of these names, or one of these labels (`labelName`). */
export interface WantedNames {
  readonly column: 'state_names' | 'labels';
  readonly names: readonly string[];
}

/** Rows with the segments or the ranges that are searched. */
interface SegmentSource {
  /** Tables with one row for each trajectory, range or segment. */
  readonly from: readonly RawBuilder<unknown>[];
  /** Conditions on a row of `segments` or of the index of names: it is one of those that are searched. */
  readonly of: (alias: string) => readonly RawBuilder<unknown>[];
  readonly owner: Owner;
  /** Columns `lo` and `hi`: the range of the steps. */
  readonly range: RawBuilder<unknown>;
}

export interface SearchedPlace extends SegmentSource {
  /** Number from which on indexes may lack segments of the trajectory. */
  readonly unindexed: RawBuilder<unknown>;
}

/** The row key of a trajectory. */
interface Owner {
  readonly tree: RawBuilder<unknown>;
  readonly key: RawBuilder<unknown>;
}

/** Condition on a row: it is of the trajectory. */
export function isOwn(alias: string, { tree, key }: Owner): RawBuilder<unknown> {
  return sql`${sql.ref(`${alias}.tree`)} = ${tree} and ${sql.ref(`${alias}.trajectory`)} = ${key}`;
}

/**
 * `k(tree, trajectory, first_step_number, lo, hi)`: the segments that have one of the names of each, though perhaps of
 * different steps. The index of names finds them, and the runs of those that it lacks are read.
 */
export function namedSegments(
  engine: Engine,
  wanted: readonly WantedNames[],
  { from, of, owner, range, unindexed }: SearchedPlace,
): RawBuilder<unknown> {
  const select = (alias: 'n' | 'b', table: 'segment_names' | 'segments', ...further: readonly RawBuilder<unknown>[]) =>
    sql`${sql.ref(`${alias}.tree`)}, ${sql.ref(`${alias}.trajectory`)}, ${sql.ref(`${alias}.first_step_number`)}, ${range}
      from ${sql.join([...from, sql`${engine.sql.table(table)} as ${sql.ref(alias)}`], sql` cross join `)}
      where ${sql.join([...of(alias), ...further], sql` and `)}`;
  const named = wanted.map(({ column, names }) => hasOneOf(engine, column, names));
  return sql`k as materialized (
    select ${canRepeat(wanted) ? sql`distinct` : sql``} ${select('n', 'segment_names', isNamed(engine, wanted, owner))}
    union all
    select ${select('b', 'segments', sql`b.body_bytes is null and b.first_step_number >= ${unindexed}`, ...named)})`;
}

/** The segments of `namedSegments`. */
export const NAMED_SEGMENTS: SegmentSource = Object.freeze({
  from: [sql`k`],
  of: (alias) => [
    isOwn(alias, NAMED_SEGMENTS.owner),
    sql`${sql.ref(`${alias}.first_step_number`)} = k.first_step_number`,
  ],
  owner: { tree: sql`k.tree`, key: sql`k.trajectory` },
  range: sql`k.lo, k.hi`,
} satisfies SegmentSource);

/** Whether a segment can have several rows that are `isNamed`. */
function canRepeat(wanted: readonly WantedNames[]): boolean {
  return wanted.some(({ names }) => names.length > 1);
}

/**
 * Condition on a row `n` of the index of names: the index has its segment by one of the names of each. The rows of one
 * of them are passed through, and for each row the others are looked up by key. With several names, it is mostly rare:
 * they are ids. Of single names, the rarest is taken.
 */
export function isNamed(engine: Engine, wanted: readonly WantedNames[], owner: Owner): RawBuilder<unknown> {
  const index = engine.sql.table('segment_names');
  const entries = wanted.map(({ column, names }) => (column === 'labels' ? names : names.map(stateEntry)));
  const several = entries.find((names) => names.length > 1);
  const passed =
    several === undefined
      ? sql`n.name = ${rarest(index, entries.flat(), owner)}`
      : engine.sql.amongTexts(sql`n.name`, several);
  // A value, because Postgres could begin a join with any of the names.
  const others = entries
    .filter((names) => names !== several)
    .map(
      (names) => sql`(select 1 from ${index} as i where i.tree = n.tree and i.trajectory = n.trajectory
        and ${isOneOf(engine, sql`i.name`, names)} and i.first_step_number = n.first_step_number limit 1) = 1`,
    );
  return sql.join([passed, ...(entries.length > 1 ? others : [])], sql` and `);
}

/** Rows of a name that are counted. Names that have as many are equally frequent. */
const COUNTED = 16;

/** The name of which the index has the fewest segments of the trajectory. */
function rarest(index: RawBuilder<unknown>, names: readonly string[], owner: Owner): RawBuilder<unknown> | string {
  const [only, ...more] = names;
  if (only !== undefined && more.length === 0) return only;
  const rows = names.map((name) => sql`select cast(${name} as text) as name`);
  return sql`(select w.name from (${sql.join(rows, sql` union all `)}) as w
    order by (select count(*) from (
      select 1 from ${index} as i where ${isOwn('i', owner)} and i.name = w.name limit ${sql.lit(COUNTED)}) as q)
    limit 1)`;
}

/** Whether a text is one of these. Postgres looks up a single one by all columns of a key, but perhaps not a list. */
function isOneOf(engine: Engine, text: RawBuilder<unknown>, texts: readonly string[]): RawBuilder<unknown> {
  return texts.length === 1 ? sql`${text} = ${texts[0]}` : engine.sql.amongTexts(text, texts);
}

/** Whether a segment `b` has a step that has one of the names. */
function hasOneOf(engine: Engine, column: WantedNames['column'], names: readonly string[]): RawBuilder<unknown> {
  return sql`exists (select 1 from ${runsIn(engine, sql.ref<string>(`b.${column}`), 'r')}
    where ${isOneOf(engine, runName('r'), names)})`;
}
