import { sql } from 'kysely';
import { clipRanges } from '../../../../domain/lineage.ts';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import { SEGMENT_STEPS } from '../../../contract/append.ts';
import type { ListedSteps, OwnedStep, StepFilter, StepPage, StepSort, StepView } from '../../../contract/step.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { NAMED_SEGMENTS, namedSegments } from '../read/named_segments.ts';
import { attachedTo, readStored, selectStored } from '../read/read_stored.ts';
import { SegmentCursor, storedStep } from '../read/segment.ts';
import { columnOfSegment } from '../read/segment_lookup.ts';
import { MANY_STEPS, searchedPlace, searchedSegments } from '../read/steps.ts';
import { NamedStates } from '../states/named_states.ts';
import { lineageTable, MOST_RANGES, rangeTable } from '../trajectory/range_table.ts';
import { type InheritedRange, inheritedRanges } from './inherited.ts';
import { cursorRank, matchingRuns, stepConditions, wantedNames } from './list_conditions.ts';
import { partsOf } from './list_parts.ts';
import { bodyBytes, searchPart } from './list_search.ts';
import { FirstSteps, type ListedStep, type SearchOrder } from './listed_step.ts';

export async function listSteps(
  scope: ReadScope,
  where: StepFilter,
  order: StepSort,
  page: StepPage,
  view: StepView,
): Promise<ListedSteps> {
  for (;;) {
    const asks = where.inherited === true && !('tree' in where.of);
    // Most tasks inherit nothing: their own steps are searched at the same time.
    const [inherited, own] = await Promise.all([
      asks ? inheritedRanges(scope, where.of) : [],
      findListed(scope, where, order, { ...page, inherited: [] }),
    ]);
    const listed = inherited.length === 0 ? own : await findListed(scope, where, order, { ...page, inherited });
    const steps = await readListed(scope, listed, page, view);
    // Undefined: steps were deleted between the statements, so the page is read again.
    if (steps !== undefined)
      return { steps: asks ? withHeirs(steps, inherited) : steps, isCut: steps.length < listed.length };
  }
}

function withHeirs(steps: readonly OwnedStep[], inherited: readonly InheritedRange[]): OwnedStep[] {
  const heirs = new Map(inherited.map(({ key, heir }) => [key, heir]));
  return steps.map((step) => ({ ...step, heir: heirs.get(step.owner.key) ?? step.owner.id }));
}

interface SearchedPage extends Pick<StepPage, 'after' | 'limit'> {
  readonly inherited: readonly InheritedRange[];
}

type LineageFilter = StepFilter & { readonly of: Extract<StepFilter['of'], { readonly tree: bigint }> };

async function findListed(
  scope: ReadScope,
  where: StepFilter,
  order: StepSort,
  page: SearchedPage,
): Promise<readonly ListedStep[]> {
  if ('tree' in where.of && where.of.lineage.length === 0) return [];
  if ('tree' in where.of && order.by === 'NUMBER') return listLineage(scope, { ...where, of: where.of }, order, page);
  const found = await listInOrder(scope, where, order, page);
  if (order.by !== 'REWARD' || where.minReward !== undefined || where.maxReward !== undefined) return found;
  if (found.length === page.limit) return found;
  const unranked = { by: 'UNRANKED', descending: order.descending } as const;
  const rest = await listInOrder(scope, where, unranked, { ...page, limit: page.limit - found.length });
  return [...found, ...rest];
}

async function listInOrder(
  scope: ReadScope,
  where: StepFilter,
  order: SearchOrder,
  { after: cursor, limit, inherited }: SearchedPage,
): Promise<readonly ListedStep[]> {
  const after = cursor && cursorRank(order, cursor);
  // Steps without a reward come after all steps with one.
  if (order.by === 'REWARD' && cursor !== undefined && after === undefined) return [];
  let first = new FirstSteps(order, limit);
  const search = { where, inherited, order, after, limit };
  for await (const { part, rank } of partsOf(scope, search)) {
    if (rank !== undefined && first.excludes(rank)) break;
    first = await searchPart(scope, search, part, first);
    await nextIteration();
  }
  return first.steps;
}

/**
 * How many steps the first window of a lineage has at least, and how much larger the next ones are. If the index of
 * names tells which segments of a window are read, windows can be large: others cost nothing.
 */
const WINDOWS = { least: 1, factor: 4n };
const NAMED_WINDOWS = { least: SEGMENT_STEPS, factor: 16n };

/**
 * Step numbers of a lineage have no gaps. Windows of numbers, which grow until the page is full, avoid sorting the
 * whole history.
 */
async function listLineage(
  scope: ReadScope,
  where: LineageFilter,
  { descending }: StepSort,
  { after, limit }: Pick<StepPage, 'after' | 'limit'>,
): Promise<ListedStep[]> {
  const { lineage } = where.of;
  const rows: ListedStep[] = [];
  let low = descending || after === undefined ? 0n : after.stepNumber + 1n;
  let high = descending && after !== undefined ? after.stepNumber : (lineage.at(-1)?.to ?? 0n);
  const { least, factor } = wantedNames(where).length > 0 ? NAMED_WINDOWS : WINDOWS;
  const first = BigInt(Math.max(limit, least));
  for (let width = first; low < high && rows.length < limit; width *= factor) {
    if (width > first) await nextIteration();
    const whole = clipRanges(
      lineage,
      descending && high - width > low ? high - width : low,
      !descending && low + width < high ? low + width : high,
    );
    const window = descending ? whole.slice(-MOST_RANGES) : whole.slice(0, MOST_RANGES);
    const [lowest, highest] = [window[0], window.at(-1)];
    if (lowest === undefined || highest === undefined) break;
    rows.push(
      ...(await listWindow(scope, { ...where, of: { ...where.of, lineage: window } }, descending, limit - rows.length)),
    );
    if (descending) high = lowest.from;
    else low = highest.to;
  }
  return rows;
}

/** Returns the first steps of a window of a lineage, in order of number. */
async function listWindow(
  { engine, namespace }: ReadScope,
  where: LineageFilter,
  descending: boolean,
  limit: number,
): Promise<ListedStep[]> {
  const names = wantedNames(where);
  const ranges = searchedPlace(engine);
  // The ranges, or the segments in them that have the names.
  const [table, { of, owner }] = names.length === 0 ? [sql`p`, ranges] : [sql`k`, NAMED_SEGMENTS];
  const named = names.length === 0 ? sql`` : sql`, ${namedSegments(engine, names, ranges)}`;
  const runs = matchingRuns(engine, where, {
    from: sql`${table} cross join ${engine.sql.table('segments')} as e`,
    of: sql.join(of('e'), sql` and `),
  });
  const conditions = [
    ...of('s'),
    sql`s.step_number >= ${table}.lo and s.step_number < ${table}.hi`,
    ...stepConditions(engine, where),
  ];
  // All of the key of a segment comes from one table (see `searchPart`).
  const rows = await engine.reads.rows<
    [tree: number, key: number, ownerId: string, stepNumber: number, first: number, bodyBytes: number]
  >(sql`
    with ${lineageTable(engine, where.of.tree, where.of.lineage)}, ${searchedSegments(engine)}${named}${runs},
    d as materialized (
      select ${table}.*, cast(o.id as text) as id from ${table} cross join ${engine.sql.table('trajectories')} as o
      where o.tree = ${owner.tree} and o.key = ${owner.key} and o.namespace = ${namespace})
    select s.tree, s.trajectory, ${table}.id, s.step_number, s.first_step_number, ${bodyBytes(engine)}
    from d as ${table} cross join ${engine.sql.table('steps')} as s
    where ${sql.join(conditions, sql` and `)}
    order by s.step_number ${descending ? sql`desc` : sql`asc`}
    limit ${limit}`);
  return rows.map(([tree, key, ownerId, stepNumber, first, bytes]) => {
    return { tree, key, ownerId, stepNumber, first, bodyBytes: bytes, value: stepNumber };
  });
}

/** Bytes of segments that one statement reads for a list, unless one segment is larger. */
const BYTES_PER_READ = 1024 * 1024;

/**
 * Returns the listed steps up to about `maxBytes`, at least one, by reading the segments that have them; undefined if
 * one of the steps was deleted.
 */
async function readListed(
  scope: ReadScope,
  listed: readonly ListedStep[],
  { maxBytes, inlineBytes = 0 }: StepPage,
  view: StepView,
): Promise<OwnedStep[] | undefined> {
  const steps: OwnedStep[] = [];
  let bytes = 0;
  for (const some of bySegments(listed)) {
    const found = await readSegments(scope, some, view, inlineBytes);
    for (const { key, ownerId, stepNumber } of some) {
      const step = found.get(tupleKey(key, stepNumber));
      if (step === undefined) return undefined;
      bytes += step.bytes;
      if (steps.length > 0 && bytes > maxBytes) return steps;
      const owned = { owner: { key: BigInt(key), id: ownerId }, step: step.step };
      steps.push(step.states === undefined ? owned : { ...owned, states: step.states });
    }
  }
  return steps;
}

/** Splits the list where the segments of its steps would exceed `BYTES_PER_READ`. */
function* bySegments(listed: readonly ListedStep[]): Generator<ListedStep[]> {
  let some: ListedStep[] = [];
  let segments = new Set<string>();
  let bytes = 0;
  for (const step of listed) {
    const segment = tupleKey(step.key, step.first);
    if (!segments.has(segment)) {
      bytes += step.bodyBytes;
      if (bytes > BYTES_PER_READ && some.length > 0) {
        yield some;
        [some, segments, bytes] = [[], new Set(), step.bodyBytes];
      }
      segments.add(segment);
    }
    some.push(step);
  }
  if (some.length > 0) yield some;
}

interface FoundStep extends Pick<OwnedStep, 'step' | 'states'> {
  readonly bytes: number;
}

/** Returns those of the steps that still exist, by owner and number. */
async function readSegments(
  { engine, namespace }: ReadScope,
  listed: readonly ListedStep[],
  view: StepView,
  inlineBytes: number,
): Promise<Map<string, FoundStep>> {
  const wanted = Map.groupBy(listed, ({ key, first }) => tupleKey(key, first));
  const ranges = [...wanted.values()].map((steps) => {
    const [{ tree, key, first }] = steps as [ListedStep];
    const last = steps.reduce((most, { stepNumber }) => Math.max(most, stepNumber), first);
    return { tree: BigInt(tree), key: BigInt(key), from: BigInt(first), to: BigInt(last) + 1n };
  });
  // The segments may have been merged since they were found. All of their key comes from one table (see `searchPart`).
  const step = { tree: sql`g.tree`, trajectory: sql`g.key`, stepNumber: sql`g.lo` };
  const query = selectStored(engine, {
    beginning: sql`with ${rangeTable(engine, ranges)}, h as materialized (
      select g.tree, g.key, t.id, ${columnOfSegment(engine, 'first_step_number', step)} as first
      from g cross join ${engine.sql.table('trajectories')} as t where t.tree = g.tree and t.key = g.key)`,
    segments: sql`from h as o cross join ${engine.sql.table('segments')} as s
      where s.tree = o.tree and s.trajectory = o.key and s.first_step_number = o.first`,
    attached: sql`from g cross join ${engine.sql.table('attached_states')} as a
      where a.tree = g.tree and a.trajectory = g.key and a.step_number >= g.lo and a.step_number < g.hi`,
    withStates: inlineBytes > 0,
  });
  const stored = await readStored(engine, query);
  const passed = ranges.reduce((steps, { from, to }) => steps + (to - from), 0n);
  if (passed >= MANY_STEPS) await engine.slots.take(namespace);
  const found = new Map<string, FoundStep>();
  const named = inlineBytes > 0 ? new NamedStates(view, inlineBytes) : undefined;
  for (const row of stored.segments) {
    const { owner, segment } = row;
    const { first_step_number: first, next_step_number: next } = segment;
    const here = listed.filter(
      ({ key, stepNumber }) => BigInt(key) === owner.key && stepNumber >= first && stepNumber < next,
    );
    const numbers = new Set(here.map(({ stepNumber }) => stepNumber));
    for (const steps = new SegmentCursor(segment); numbers.size > 0 && steps.next(); ) {
      const { stepNumber, frameBytes } = steps;
      if (!numbers.delete(Number(stepNumber))) continue;
      const attached = attachedTo(stored.attached, owner.key, stepNumber);
      const step = { step: storedStep(steps, attached, view), bytes: frameBytes };
      const states = named?.of(row, steps, attached);
      found.set(tupleKey(owner.key, stepNumber), states === undefined ? step : { ...step, states });
    }
  }
  return found;
}
