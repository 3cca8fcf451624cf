import { type RawBuilder, sql } from 'kysely';
import type { Engine } from '../../kit/engine.ts';
import { powerOfTwo } from '../../kit/kept_queries.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { isOwn, NAMED_SEGMENTS, namedSegments, type SearchedPlace } from '../read/named_segments.ts';
import { columnOfSegment, indexedTo } from '../read/segment_lookup.ts';
import { searchedPlace, searchedSegments } from '../read/steps.ts';
import { rangeTable } from '../trajectory/range_table.ts';
import {
  asksForRuns,
  belongs,
  firstRuns,
  matchingRuns,
  segmentConditions,
  stepConditions,
  wantedNames,
} from './list_conditions.ts';
import { afterRank, directionOf, type OrderTerms, reverseOf, termsOf } from './list_orders.ts';
import { isSmall, smallParts } from './list_parts.ts';
import type { FirstSteps, ListedStep, Rank } from './listed_step.ts';
import { isRanges, type Search, type SearchedPart } from './searched_part.ts';

/**
 * Most segments that the first statement of a search looks into; it looks into fewer if the page has fewer steps. Each
 * further statement looks into four times as many.
 */
const FIRST_CANDIDATES = 16;
/** The most that are looked into before a part of many steps is searched in smaller parts. */
const MOST_CANDIDATES = 1024;

/**
 * Returns the first steps, after this part too was searched. A segment has a rank before or at those of its
 * steps, so the first segments in order of rank are looked into until no other segment can have one of the first steps.
 * Their bodies are not read.
 *
 * Each statement begins with the first segments again. What earlier statements saw does not help, because segments may
 * have been merged since.
 */
export async function searchPart(
  scope: ReadScope,
  search: Search,
  part: SearchedPart,
  before: FirstSteps,
): Promise<FirstSteps> {
  if (search.order.by === 'METRIC') return searchScores(scope, search, part, before);
  const most = isSmall(part) ? Number.POSITIVE_INFINITY : MOST_CANDIDATES;
  for (let count = firstCount(search); count <= most; count *= 4) {
    const found = await searchCandidates(scope, search, part, { count, worst: before.last });
    const first = before.with(found.steps);
    if (found.candidates < count || found.last === undefined || first.excludes(found.last)) return first;
    await nextIteration();
  }
  let first = before;
  for await (const small of smallParts(scope, search, part)) first = await searchPart(scope, search, small, first);
  return first;
}

function firstCount({ limit }: Search): number {
  return Math.min(powerOfTwo(limit), FIRST_CANDIDATES);
}

/** The most scores that one statement looks up the steps of. */
const MOST_SCORES = 256;

/** Like `searchPart`, in an order by a metric. Scores never move, so each statement begins after the one before. */
async function searchScores(
  scope: ReadScope,
  search: Search,
  part: SearchedPart,
  before: FirstSteps,
): Promise<FirstSteps> {
  let first = before;
  let { after } = search;
  for (let count = firstCount(search); ; count = Math.min(count * 4, MOST_SCORES)) {
    const found = await searchCandidates(scope, { ...search, after }, part, { count, worst: first.last });
    first = first.with(found.steps);
    if (found.candidates < count || found.last === undefined || first.excludes(found.last)) return first;
    after = found.last;
    await nextIteration();
  }
}

interface Candidates {
  readonly count: number;
  /** Only steps before this one are searched. */
  readonly worst: Rank | undefined;
}

const PLACE = { tree: sql`c.tree`, trajectory: sql`c.trajectory`, stepNumber: sql`c.place` };

type FoundRow =
  | [
      isStep: 1,
      tree: number,
      key: number,
      ownerId: string,
      stepNumber: number,
      first: number,
      bodyBytes: number,
      value: number | string,
    ]
  | [isStep: 0, candidates: number, key: number, null, first: number, null, null, bound: number | string];

/** Returns the first steps of the first segments in order of rank, and the rank of the last of these segments. */
async function searchCandidates(
  scope: ReadScope,
  search: Search,
  part: SearchedPart,
  wanted: Candidates,
): Promise<{ readonly steps: ListedStep[]; readonly candidates: number; readonly last: Rank | undefined }> {
  const { engine, namespace } = scope;
  const { where, order, after, limit } = search;
  const { step: value, table } = termsOf(order);
  const direction = directionOf(order);
  const first = table === 'segments' ? sql`c.place` : columnOfSegment(engine, 'first_step_number', PLACE);
  const owners = [
    sql`o.tree = c.tree and o.key = c.trajectory and o.namespace = ${namespace}`,
    ...('tree' in where.of || where.inherited === true ? [] : [sql`o.hidden = ${0}`]),
  ];
  // Only segments with a run that matches the first filter are looked into.
  const beginsWithRuns = table === 'segments' && asksForRuns(where);
  const filters = stepConditions(engine, where, beginsWithRuns);
  const runs = matchingRuns(engine, where, {
    from: sql`(select distinct tree, trajectory, first_step_number from d) as d cross join ${engine.sql.table('segments')} as e`,
    of: sql`e.tree = d.tree and e.trajectory = d.trajectory and e.first_step_number = d.first_step_number`,
  });
  // A score tells the step. Unless there are filters, its segment need not be looked into.
  const isKnown = table === 'step_scores' && filters.length === 0;
  const number = isKnown ? sql`d.lo` : sql`s.step_number`;
  const conditions = [
    sql`s.tree = d.tree and s.trajectory = d.trajectory and s.first_step_number = d.first_step_number`,
    ...(isKnown ? [] : [sql`s.step_number >= d.lo and s.step_number < d.hi`]),
    ...(beginsWithRuns
      ? [sql`d.tree = m.tree and d.trajectory = m.trajectory and d.first_step_number = m.first_step_number`]
      : []),
    // Postgres would evaluate the filters for all steps of the segment, and then choose one.
    ...(table === 'step_scores' && !isKnown
      ? [sql`case when s.step_number = d.lo then ${sql.join(filters, sql` and `)} end`]
      : filters),
    ...(order.by === 'UNRANKED' ? [sql`(s.reward is null or s.reward = 'NaN')`] : []),
    ...(order.by === 'REWARD' ? [sql`s.reward <> 'NaN'`] : []),
    ...(after === undefined ? [] : [afterRank(order, value, number, sql`s.trajectory`, after)]),
  ];
  // All of the key of a segment comes from one table: Postgres could take a part of it from another one, and read all
  // segments of the trajectory. The limit is in the text, because engines plan badly for one in a parameter.
  const rows = await engine.reads.rows<FoundRow>(sql`
    with ${candidateTable(scope, search, part, wanted)},
    d as materialized (
      select c.tree, c.trajectory, ${first} as first_step_number, c.lo, c.hi, c.bound, cast(o.id as text) as id
      from c cross join ${engine.sql.table('trajectories')} as o
      where ${sql.join(owners, sql` and `)})${runs},
    f as (
      select s.tree, s.trajectory, d.id, ${number} as step_number, s.first_step_number, ${value} as value
      from ${beginsWithRuns ? sql`${firstRuns(engine)} as m cross join ` : sql``}d cross join ${engine.sql.table(isKnown ? 'segments' : 'steps')} as s
      where ${sql.join(conditions, sql` and `)}
      order by value ${direction}, s.trajectory ${direction}, ${number} ${direction}
      limit ${sql.lit(powerOfTwo(limit))}),
    l as (
      select (select count(*) from c) as candidates, c.trajectory, c.place, c.bound from c
      order by c.bound ${reverseOf(order)}, c.trajectory ${reverseOf(order)}, c.place ${reverseOf(order)}
      limit 1)
    select 1, s.tree, s.trajectory, s.id, s.step_number, s.first_step_number, ${bodyBytes(engine)}, s.value from f as s
    union all
    select 0, candidates, trajectory, null, place, null, null, bound from l`);
  const steps: ListedStep[] = [];
  let last: Rank | undefined;
  let candidates = 0;
  for (const row of rows) {
    if (row[0] === 1) {
      const [, tree, key, ownerId, stepNumber, first, bytes, stepValue] = row;
      steps.push({ tree, key, ownerId, stepNumber, first, bodyBytes: bytes, value: stepValue });
    } else {
      candidates = row[1];
      last = { value: row[7], key: row[2], stepNumber: row[4] };
    }
  }
  return { steps, candidates, last };
}

/** Size of the encoded steps of the segment of `s`, which neither engine reads for it. */
export function bodyBytes(engine: Engine): RawBuilder<unknown> {
  return sql`(select coalesce(b.body_bytes, octet_length(b.body)) from ${engine.sql.table('segments')} as b
    where b.tree = s.tree and b.trajectory = s.trajectory and b.first_step_number = s.first_step_number)`;
}

/** `c(tree, trajectory, place, lo, hi, bound)`: the first rows in order of rank, and the ranges of their steps. */
function candidateTable(
  scope: ReadScope,
  { where, order, after }: Search,
  part: SearchedPart,
  { count, worst }: Candidates,
): RawBuilder<unknown> {
  const { engine } = scope;
  const terms = termsOf(order);
  const { table, number, bound, isKnown, isIndexed, mayFollow } = terms;
  const { beginning, ...source } = sourceOf(scope, part, terms);
  const direction = directionOf(order);
  const conditions = [
    ...isKnown,
    ...(table === 'segments' ? segmentConditions(where) : []),
    ...(after === undefined ? [] : [mayFollow(after)]),
    ...(worst === undefined || order.by === 'UNRANKED'
      ? []
      : [sql`${bound} ${order.descending ? sql`>=` : sql`<=`} ${worst.value}`]),
  ];
  const firstOf = (
    { from, of, range }: Pick<Source, 'from' | 'of' | 'range'>,
    ...further: readonly RawBuilder<unknown>[]
  ) => sql`
    select b.tree, b.trajectory, ${number} as place, ${range}, ${bound} as bound
    from ${sql.join([...from, sql`${engine.sql.table(table)} as b`], sql` cross join `)}
    where ${sql.join([...of('b', true), ...conditions, ...further], sql` and `)}
    order by bound ${direction}, b.trajectory ${direction}, ${number} ${direction}
    limit ${sql.lit(count)}`;
  const names = table === 'segments' ? wantedNames(where) : [];
  if (names.length > 0)
    return sql`${beginning} ${namedSegments(engine, names, source)}, c as materialized (${firstOf(NAMED_SEGMENTS)})`;
  if (table !== 'segments' || !(isIndexed || asksForRuns(where)))
    return sql`${beginning} c as materialized (${firstOf(source)})`;
  const inIndex = firstOf(source, sql`b.body_bytes is not null`);
  const others = firstOf(source, sql`b.body_bytes is null and b.first_step_number >= ${source.unindexed}`);
  return sql`${beginning} c as materialized (
    select * from (${inIndex}) as i union all select * from (${others}) as j
    order by bound ${direction}, trajectory ${direction}, place ${direction}
    limit ${sql.lit(count)})`;
}

interface Source extends SearchedPlace {
  /** Common table expressions. */
  readonly beginning: RawBuilder<unknown>;
  /** With `inOrder`, the order decides on the index, not the range, which is nearly always all of the trajectory. */
  readonly of: (alias: string, inOrder?: boolean) => readonly RawBuilder<unknown>[];
}

function sourceOf(scope: ReadScope, part: SearchedPart, { table }: OrderTerms): Source {
  const { engine } = scope;
  const ofSegments = table === 'segments';
  // The sign keeps SQLite from taking the range for the better choice.
  const at = (alias: string, inOrder: boolean) =>
    sql`${inOrder ? sql`+` : sql``}${sql.ref(`${alias}.${ofSegments ? 'first_step_number' : 'step_number'}`)}`;
  if (!isRanges(part)) {
    const belonging = belongs(scope, part);
    const of = (alias: string) => [belonging, isOwn(alias, owner)];
    const range = sql`0 as lo, o.next_step_number as hi`;
    const from = [sql`${engine.sql.table('trajectories')} as o`];
    const owner = { tree: sql`o.tree`, key: sql`o.key` };
    return { beginning: sql``, from, of, owner, range, unindexed: sql`o.indexed_to` };
  }
  const own = sql`b.step_number as lo, b.step_number + 1 as hi`;
  const [only, ...others] = part;
  if (only !== undefined && others.length === 0) {
    // Constants: the index has the rows of one trajectory in order, so that only the first of them are read.
    const { tree, key, from, to } = only;
    const begin = columnOfSegment(engine, 'first_step_number', { tree, trajectory: key, stepNumber: from });
    const first = ofSegments ? sql`coalesce(${begin}, 0)` : sql`${from}`;
    const of = (alias: string, inOrder = false) => [
      isOwn(alias, owner),
      sql`${at(alias, inOrder)} < ${to} and ${at(alias, inOrder)} >= ${first}`,
    ];
    const range = ofSegments ? sql`cast(${from} as bigint) as lo, cast(${to} as bigint) as hi` : own;
    const owner = { tree: sql`${tree}`, key: sql`${key}` };
    return { beginning: sql``, from: [], of, owner, range, unindexed: indexedTo(engine, owner.tree, owner.key) };
  }
  const beginning = sql`${rangeTable(engine, part)}, ${searchedSegments(engine)},`;
  const { owner, ...place } = searchedPlace(engine);
  const first = ofSegments ? sql`p.first` : sql`p.lo`;
  const of = (alias: string, inOrder = false) => [
    isOwn(alias, owner),
    sql`${at(alias, inOrder)} >= ${first} and ${at(alias, inOrder)} < p.hi`,
  ];
  return { ...place, beginning, owner, of, range: ofSegments ? place.range : own };
}
