import { type RawBuilder, sql } from 'kysely';
import type { OwnedRange, TreeRange } from '../../../../domain/lineage.ts';
import type { StepFilter } from '../../../contract/step.ts';
import type { Engine } from '../../kit/engine.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { lineageTable, piecesOf } from '../trajectory/range_table.ts';
import { type Belonging, belongs, rewardConditions } from './list_conditions.ts';
import { compareRanks, type Rank } from './listed_step.ts';
import { isRanges, type Search, type SearchedPart } from './searched_part.ts';

/** A part of what is searched. */
export interface RankedPart {
  readonly part: SearchedPart;
  /** No step of this part or of the parts after it comes before. Undefined if that is not known. */
  readonly rank: Rank | undefined;
}

/**
 * Returns what to search, the first parts in order first. In an order by reward, the bounds of the rewards of whole
 * trajectories decide.
 */
export async function* partsOf(scope: ReadScope, search: Search): AsyncGenerator<RankedPart> {
  const { of } = search.where;
  for (const part of inParts(search.inherited)) yield { part, rank: undefined };
  const isByTrajectory = search.order.by !== 'NUMBER' && search.order.by !== 'TIME';
  if (!('tree' in of)) {
    if (isByTrajectory) yield* partsOfBelonging(scope, search, of);
    else yield { part: of, rank: undefined };
  } else if (isByTrajectory && of.lineage.length > 1) {
    const ranges = await rangesOfLineage(scope, search, of);
    yield* inRankedParts(ranges.sort((a, b) => compareRanks(search.order)(a.rank, b.rank)));
  } else {
    for (const piece of piecesOf(of.lineage)) yield { part: inTree(of.tree, piece), rank: undefined };
  }
}

/** Bounds of a part, unless one trajectory has more steps: what one statement may have to search. */
const PART_TRAJECTORIES = 64;
const PART_STEPS = 16_384;

/** Whether any statement may search all of the part. */
export function isSmall(part: SearchedPart): boolean {
  return isRanges(part) && part.reduce((steps, { from, to }) => steps + (to - from), 0n) <= PART_STEPS;
}

/** Returns the small parts that a part consists of, in any order. */
export async function* smallParts(scope: ReadScope, search: Search, part: SearchedPart): AsyncGenerator<SearchedPart> {
  if (isRanges(part)) yield* inParts(part.flatMap((range) => [...piecesOfRange(range)]));
  else for await (const { part: some } of partsOfBelonging(scope, search, part)) yield some;
}

function* piecesOfRange({ from, to, ...trajectory }: TreeRange): Generator<TreeRange> {
  const most = BigInt(PART_STEPS);
  for (let at = from; at < to; at += most) yield { ...trajectory, from: at, to: at + most < to ? at + most : to };
}

function* inParts<Range extends TreeRange>(ranges: readonly Range[]): Generator<Range[]> {
  let part: Range[] = [];
  let steps = 0n;
  for (const range of ranges) {
    steps += range.to - range.from;
    if (part.length > 0 && (part.length === PART_TRAJECTORIES || steps > PART_STEPS)) {
      yield part;
      [part, steps] = [[], range.to - range.from];
    }
    part.push(range);
  }
  if (part.length > 0) yield part;
}

interface RankedRange extends TreeRange {
  readonly rank: Rank;
}

function* inRankedParts(ranges: readonly RankedRange[]): Generator<RankedPart> {
  for (const part of inParts(ranges)) yield { part, rank: part[0]?.rank };
}

type RangeRow = [tree: number, key: number, from: number, to: number, bound: number | null];

/** Trajectories that the first statement returns. */
const FIRST_TRAJECTORIES = 64;

/**
 * Trajectories of a task, run or experiment. Those that were searched are excluded by key, because an append in the
 * meantime may move a trajectory to another place in the order.
 */
async function* partsOfBelonging(scope: ReadScope, search: Search, of: Belonging): AsyncGenerator<RankedPart> {
  const { engine } = scope;
  const searched: bigint[] = [];
  const direction = search.order.descending ? sql`desc` : sql`asc`;
  for (let limit = FIRST_TRAJECTORIES; ; limit *= 4) {
    const excluded = searched.length === 0 ? [] : [sql`not ${engine.sql.among(sql`o.key`, searched)}`];
    const rows = await engine.reads.rows<RangeRow>(sql`
      select o.tree, o.key, coalesce(o.branch_point + 1, 0), o.next_step_number, ${boundOf(engine, search)} as bound
      from ${engine.sql.table('trajectories')} as o
      where ${sql.join([belongs(scope, of), ...conditionsOf(engine, search), ...excluded], sql` and `)}
      order by bound ${direction}, o.key ${direction}
      limit ${sql.lit(limit)}`);
    yield* inRankedParts(rows.flatMap(rankedRange));
    if (rows.length < limit) return;
    for (const [, key] of rows) searched.push(BigInt(key));
    await nextIteration();
  }
}

/** Returns no range for a trajectory without a value. */
function rankedRange([tree, key, from, to, bound]: RangeRow): RankedRange[] {
  if (bound === null) return [];
  const rank = { value: bound, key, stepNumber: from };
  return [{ tree: BigInt(tree), key: BigInt(key), from: BigInt(from), to: BigInt(to), rank }];
}

async function rangesOfLineage(
  { engine, namespace }: ReadScope,
  search: Search,
  { tree, lineage }: Extract<StepFilter['of'], { readonly tree: bigint }>,
): Promise<RankedRange[]> {
  const ranges: RankedRange[] = [];
  for (const piece of piecesOf(lineage)) {
    if (ranges.length > 0) await nextIteration();
    const own = sql`o.tree = g.tree and o.key = g.key and o.namespace = ${namespace}`;
    const rows = await engine.reads.rows<RangeRow>(sql`
      with ${lineageTable(engine, tree, piece)}
      select g.tree, g.key, g.lo, g.hi, ${boundOf(engine, search)}
      from g cross join ${engine.sql.table('trajectories')} as o
      where ${sql.join([own, ...conditionsOf(engine, search)], sql` and `)}`);
    ranges.push(...rows.flatMap(rankedRange));
  }
  return ranges;
}

/**
 * The first value in order of the own steps of the trajectory `o`, or null. By time and number, trajectories are equal.
 */
function boundOf(engine: Engine, { order: { by, metric, descending } }: Search): RawBuilder<unknown> {
  if (by === 'METRIC')
    return sql`(select v.value from ${engine.sql.table('step_scores')} as v
      where v.tree = o.tree and v.trajectory = o.key and v.metric = ${metric}
      order by v.value ${descending ? sql`desc` : sql`asc`} limit 1)`;
  if (by !== 'REWARD') return sql`0`;
  return descending ? sql`o.max_reward` : sql`o.min_reward`;
}

/** Conditions that the trajectory `o` must meet for one of its own steps to be in the page. */
function conditionsOf(engine: Engine, { where, order, after }: Search): RawBuilder<unknown>[] {
  const { by, descending } = order;
  if (by === 'METRIC') return [sql`${engine.sql.hasItem(sql<string>`o.scored_metrics`, order.metric ?? '')}`];
  if (by === 'UNRANKED' && after !== undefined)
    return [sql`o.key ${descending ? sql`<=` : sql`>=`} cast(${after.key} as bigint)`];
  if (by !== 'REWARD') return [];
  const following = (value: Rank['value']) =>
    descending ? sql`o.min_reward <= ${value}` : sql`o.max_reward >= ${value}`;
  return [
    sql`o.max_reward is not null`,
    ...rewardConditions('o', where),
    ...(after === undefined ? [] : [following(after.value)]),
  ];
}

function inTree(tree: bigint, lineage: readonly OwnedRange[]): TreeRange[] {
  return lineage.map(({ key, from, to }) => ({ tree, key, from, to }));
}
