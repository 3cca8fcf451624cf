import { type RawBuilder, sql } from 'kysely';
import type { Engine } from '../engine.ts';
import { nextIteration } from '../reading/event_loop.ts';
import { rangeTable } from '../trajectory/segments.ts';
import type { ReadScope } from '../transaction.ts';
import { belongs, beyond, LAST_COMMIT, segmentConditions, stepConditions } from './list_conditions.ts';
import { isSmall, smallParts } from './list_parts.ts';
import type { FirstSteps, ListedStep, Rank, SearchOrder } from './listed_step.ts';
import { isRanges, type Search, type SearchedPart } from './searched_part.ts';
import { columnOfSegment } from './segment_lookup.ts';
import { searchedSegments } from './steps.ts';

/** Stored segments that the first statement of a search looks into. Each further one looks into four times as many. */
const FEWEST_CANDIDATES = 16;
/** The most that are looked into before a part of many steps is searched in smaller parts. */
const MOST_CANDIDATES = 1024;

/**
 * Returns the first steps, after this part too was searched. A stored segment has a rank before or at those of its
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
  const most = isSmall(part) ? Number.POSITIVE_INFINITY : MOST_CANDIDATES;
  for (let count = FEWEST_CANDIDATES; count <= most; count *= 4) {
    const found = await searchCandidates(scope, search, part, { count, worst: before.last });
    const first = before.with(found.steps);
    if (found.candidates < count || found.last === undefined || first.excludes(found.last)) return first;
    await nextIteration();
  }
  let first = before;
  for await (const small of smallParts(scope, search, part)) first = await searchPart(scope, search, small, first);
  return first;
}

interface Candidates {
  readonly count: number;
  /** Only steps before this one are searched. */
  readonly worst: Rank | undefined;
}

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
  const { step: value } = VALUES[order.by](order);
  const direction = directionOf(order);
  const conditions = [
    sql`o.tree = c.tree and o.key = c.trajectory and o.namespace = ${namespace}`,
    sql`s.tree = c.tree and s.trajectory = c.trajectory and s.first_step_number = c.first_step_number
      and s.step_number >= c.lo and s.step_number < c.hi`,
    ...stepConditions(engine, where),
    ...(order.by === 'UNRANKED' ? [sql`(s.reward is null or s.reward = 'NaN')`] : []),
    ...(order.by === 'REWARD' ? [sql`s.reward <> 'NaN'`] : []),
    ...('tree' in where.of ? [] : [sql`o.hidden = ${0}`]),
    ...(after === undefined ? [] : [afterRank(order, value, sql`s.step_number`, sql`s.trajectory`, after)]),
  ];
  const rows = await engine.rows<FoundRow>(sql`
    with ${candidateTable(scope, search, part, wanted)},
    f as (
      select s.tree, s.trajectory, cast(o.id as text) as id, s.step_number, s.first_step_number, ${bodyBytes(engine)} as body_bytes, ${value} as value
      from c cross join ${engine.table('trajectories')} as o cross join ${engine.table('steps')} as s
      where ${sql.join(conditions, sql` and `)}
      order by value ${direction}, s.trajectory ${direction}, s.step_number ${direction}
      limit ${limit}),
    l as (
      select (select count(*) from c) as candidates, c.trajectory, c.first_step_number, c.bound from c
      order by c.bound ${reverseOf(order)}, c.trajectory ${reverseOf(order)}, c.first_step_number ${reverseOf(order)}
      limit 1)
    select 1, tree, trajectory, id, step_number, first_step_number, body_bytes, value from f
    union all
    select 0, candidates, trajectory, null, first_step_number, null, null, bound from l`);
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

/** Size of the encoded steps of the stored segment of `s`, which neither engine reads for it. */
export function bodyBytes(engine: Engine): RawBuilder<unknown> {
  return sql`(select coalesce(b.body_bytes, octet_length(b.body)) from ${engine.table('segments')} as b
    where b.tree = s.tree and b.trajectory = s.trajectory and b.first_step_number = s.first_step_number)`;
}

/** `c(tree, trajectory, first_step_number, lo, hi, bound)`: the first segments in order of rank. */
function candidateTable(
  scope: ReadScope,
  { where, order, after }: Search,
  part: SearchedPart,
  { count, worst }: Candidates,
): RawBuilder<unknown> {
  const { engine } = scope;
  const { bound, isKnown, mayFollow } = VALUES[order.by](order);
  const { beginning, from, of, range } = sourceOf(scope, part);
  const direction = directionOf(order);
  const conditions = [
    ...of,
    ...isKnown,
    ...segmentConditions(where),
    ...(after === undefined ? [] : [mayFollow(after)]),
    ...(worst === undefined || order.by === 'UNRANKED'
      ? []
      : [sql`${bound} ${order.descending ? sql`>=` : sql`<=`} ${worst.value}`]),
  ];
  return sql`${beginning} c as materialized (
    select b.tree, b.trajectory, b.first_step_number, ${range}, ${bound} as bound
    from ${sql.join(
      from.map((each) => (each === 'segments' ? sql`${engine.table(each)} as b` : each)),
      sql` cross join `,
    )}
    where ${sql.join(conditions, sql` and `)}
    order by bound ${direction}, b.trajectory ${direction}, b.first_step_number ${direction}
    limit ${sql.lit(count)})`;
}

interface Source {
  /** Common table expressions. */
  readonly beginning: RawBuilder<unknown>;
  readonly from: readonly (RawBuilder<unknown> | 'segments')[];
  readonly of: readonly RawBuilder<unknown>[];
  /** Columns `lo` and `hi`: the range of the steps. */
  readonly range: RawBuilder<unknown>;
}

/**
 * The order decides on the index, not the range, which is nearly always all of the trajectory: the sign keeps SQLite from
 * taking the range for the better choice.
 */
function sourceOf(scope: ReadScope, part: SearchedPart): Source {
  const { engine } = scope;
  if (!isRanges(part)) {
    const of = [belongs(scope, part), sql`b.tree = o.tree and b.trajectory = o.key`];
    return {
      beginning: sql``,
      from: [sql`${engine.table('trajectories')} as o`, 'segments'],
      of,
      range: sql`0 as lo, o.next_step_number as hi`,
    };
  }
  const [only, ...others] = part;
  if (only !== undefined && others.length === 0) {
    // Constants: the index has the segments of one trajectory in order, so that only the first of them are read.
    const { tree, key, from, to } = only;
    const begin = columnOfSegment(engine, 'first_step_number', { tree, trajectory: key, stepNumber: from });
    const of = [
      sql`b.tree = ${tree} and b.trajectory = ${key} and +b.first_step_number < ${to}`,
      sql`+b.first_step_number >= coalesce(${begin}, 0)`,
    ];
    const range = sql`cast(${from} as bigint) as lo, cast(${to} as bigint) as hi`;
    return { beginning: sql``, from: ['segments'], of, range };
  }
  const of = [
    sql`b.tree = p.tree and b.trajectory = p.key and +b.first_step_number >= p.first and +b.first_step_number < p.hi`,
  ];
  const beginning = sql`${rangeTable(engine, part)}, ${searchedSegments(engine)},`;
  return { beginning, from: [sql`p`, 'segments'], of, range: sql`p.lo, p.hi` };
}

interface OrderTerms {
  /** Value of a step `s`. */
  readonly step: RawBuilder<unknown>;
  /** Value of a stored segment `b`: none of its steps comes before. */
  readonly bound: RawBuilder<unknown>;
  /** Conditions on a segment that has steps in this order. */
  readonly isKnown: readonly RawBuilder<unknown>[];
  /** Whether a segment may have a step after this one. */
  readonly mayFollow: (after: Rank) => RawBuilder<unknown>;
}

const VALUES: Readonly<Record<SearchOrder['by'], (order: SearchOrder) => OrderTerms>> = {
  NUMBER: ({ descending }) => ({
    step: sql`s.step_number`,
    bound: descending ? sql`b.next_step_number - 1` : sql`b.first_step_number`,
    isKnown: [],
    mayFollow: ({ stepNumber }) =>
      descending
        ? sql`b.first_step_number <= cast(${stepNumber} as bigint)`
        : sql`b.next_step_number > cast(${stepNumber} as bigint)`,
  }),
  TIME: ({ descending }) => ({
    step: sql`s.commit_time`,
    bound: descending ? LAST_COMMIT : sql`b.commit_time`,
    isKnown: [],
    mayFollow: ({ value }) => (descending ? sql`b.commit_time <= ${value}` : sql`${LAST_COMMIT} >= ${value}`),
  }),
  REWARD: ({ descending }) => ({
    step: sql`s.reward`,
    bound: descending ? sql`b.max_reward` : sql`b.min_reward`,
    isKnown: [sql`b.max_reward is not null`],
    mayFollow: ({ value }) => (descending ? sql`b.min_reward <= ${value}` : sql`b.max_reward >= ${value}`),
  }),
  UNRANKED: ({ descending }) => ({
    step: sql`0`,
    bound: sql`0`,
    isKnown: [sql`(b.rewards like '%null%' or b.rewards like '%NaN%')`],
    mayFollow: ({ key, stepNumber }) =>
      descending
        ? sql`b.trajectory <= cast(${key} as bigint)`
        : sql`(b.trajectory > cast(${key} as bigint)
            or (b.trajectory = cast(${key} as bigint) and b.next_step_number > cast(${stepNumber} as bigint)))`,
  }),
};

/** Condition that comes after this rank, in the order of `orderBy`. */
function afterRank(
  order: SearchOrder,
  value: RawBuilder<unknown>,
  number: RawBuilder<unknown>,
  trajectory: RawBuilder<unknown>,
  rank: Rank,
): RawBuilder<unknown> {
  const operator = beyond(order);
  const ties = sql`(${trajectory}, ${number}) ${operator} (cast(${rank.key} as bigint), cast(${rank.stepNumber} as bigint))`;
  if (order.by === 'UNRANKED') return ties;
  const { value: bound } = rank;
  // The first condition is implied, and bounds the range of an index.
  return sql`${value} ${operator}= ${bound} and (${value} ${operator} ${bound} or ${ties})`;
}

function directionOf({ descending }: SearchOrder): RawBuilder<unknown> {
  return descending ? sql`desc` : sql`asc`;
}

function reverseOf({ descending }: SearchOrder): RawBuilder<unknown> {
  return descending ? sql`asc` : sql`desc`;
}
