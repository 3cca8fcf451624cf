import { type RawBuilder, sql } from 'kysely';
import { formatInstant } from '../../../domain/instant.ts';
import { clipSegments } from '../../../domain/lineage.ts';
import type { StoredStep } from '../../../domain/step.ts';
import { tupleKey } from '../../../domain/tuple_key.ts';
import type { OwnedStep, StepCursor, StepFilter, StepPage, StepSort, StepView } from '../../contract/step.ts';
import type { Engine } from '../engine.ts';
import { nextIteration } from '../reading/event_loop.ts';
import { MOST_SEGMENTS, piecesOf, segmentTable } from '../trajectory/segments.ts';
import type { ReadScope } from '../transaction.ts';
import { bindTimeBound } from '../values.ts';
import { attachedTo, readStored } from './read_stored.ts';
import { searchedSegments } from './steps.ts';
import { SegmentCursor, storedStep } from './stored_segment.ts';

/** A step of a list, with the values that it is sorted by and the first step of its stored segment. */
interface ListedStep {
  readonly tree: number;
  readonly key: number;
  readonly ownerId: string;
  readonly stepNumber: number;
  /** First step of the stored segment. */
  readonly first: number;
  readonly reward: number | string | null;
  readonly commitTime: string;
}

/** Missing and NaN rewards sort last in both directions (W11). */
const UNRANKED = sql<number>`(case when s.reward is null or s.reward = 'NaN' then 1 else 0 end)`;
const RANKED = sql<number>`(case when s.reward = 'NaN' then null else s.reward end)`;

export async function listSteps(
  scope: ReadScope,
  where: StepFilter,
  order: StepSort,
  page: StepPage,
  view: StepView,
): Promise<OwnedStep[]> {
  for (;;) {
    const rows =
      'segments' in where.of && order.by === 'NUMBER'
        ? await rowsOfLineage(scope, where, order, page)
        : await rowsInOrder(scope, where, order, page);
    const steps = await readListed(scope.engine, rows, page.maxBytes, view);
    // Undefined: steps were deleted between the statements, so the page is read again.
    if (steps !== undefined) return steps;
  }
}

/** Stored segments that one statement reads for a list: about 1 MiB. */
const SEGMENTS_PER_READ = 16;

/**
 * Returns the listed steps up to about `maxBytes`, at least one, by reading the segments that have them; undefined if
 * one of the steps was deleted.
 */
async function readListed(
  engine: Engine,
  listed: readonly ListedStep[],
  maxBytes: number,
  view: StepView,
): Promise<OwnedStep[] | undefined> {
  const steps: OwnedStep[] = [];
  let bytes = 0;
  for (const some of bySegments(listed)) {
    const found = await readSegments(engine, some, view);
    for (const { key, ownerId, stepNumber } of some) {
      const step = found.get(tupleKey(key, stepNumber));
      if (step === undefined) return undefined;
      bytes += step.bytes;
      if (steps.length > 0 && bytes > maxBytes) return steps;
      steps.push({ owner: { key: BigInt(key), id: ownerId }, step: step.step });
    }
  }
  return steps;
}

/** Splits the list where it would need more than `SEGMENTS_PER_READ` segments. */
function* bySegments(listed: readonly ListedStep[]): Generator<ListedStep[]> {
  let some: ListedStep[] = [];
  let segments = new Set<string>();
  for (const step of listed) {
    segments.add(tupleKey(step.key, step.first));
    if (segments.size > SEGMENTS_PER_READ) {
      yield some;
      some = [];
      segments = new Set([tupleKey(step.key, step.first)]);
    }
    some.push(step);
  }
  if (some.length > 0) yield some;
}

interface FoundStep {
  readonly step: StoredStep;
  readonly bytes: number;
}

/** Returns those of the steps that still exist, by owner and number. */
async function readSegments(
  engine: Engine,
  listed: readonly ListedStep[],
  view: StepView,
): Promise<Map<string, FoundStep>> {
  const wanted = Map.groupBy(listed, ({ key, first }) => tupleKey(key, first));
  const keys = [...wanted.values()].map(([step]) => keyRow(step!.tree, step!.key, step!.first));
  const numbers = listed.map(({ tree, key, stepNumber }) => keyRow(tree, key, stepNumber));
  const stored = await readStored(engine, {
    from: 0n,
    beginning: sql``,
    segments: sql`from ${engine.table('segments')} as s
      cross join ${engine.table('trajectories')} as o
      where (s.tree, s.trajectory, s.first_step_number) in (values ${sql.join(keys)}) and o.tree = s.tree and o.key = s.trajectory`,
    attached: sql`from ${engine.table('attached_states')} as a
      where (a.tree, a.trajectory, a.step_number) in (values ${sql.join(numbers)})`,
  });
  const found = new Map<string, FoundStep>();
  for (const { owner, segment } of stored.segments) {
    const first = segment.first_step_number;
    const numbersHere = new Set(wanted.get(tupleKey(owner.key, first))?.map(({ stepNumber }) => BigInt(stepNumber)));
    for (const steps = new SegmentCursor(segment); steps.next(); ) {
      const { stepNumber, frameBytes } = steps;
      if (!numbersHere.has(stepNumber)) continue;
      const step = storedStep(steps, attachedTo(stored.attached, owner.key, stepNumber), view);
      found.set(tupleKey(owner.key, stepNumber), { step, bytes: frameBytes });
    }
  }
  return found;
}

function keyRow(tree: number, key: number, number: number): RawBuilder<unknown> {
  return sql`(cast(${BigInt(tree)} as bigint), cast(${BigInt(key)} as bigint), cast(${BigInt(number)} as bigint))`;
}

/**
 * Step numbers of a lineage have no gaps. Windows of numbers, which grow until the page is full, avoid sorting the
 * whole history.
 */
async function rowsOfLineage(
  scope: ReadScope,
  where: StepFilter,
  order: StepSort,
  page: StepPage,
): Promise<ListedStep[]> {
  if (!('segments' in where.of)) throw new Error('steps of a lineage are asked for by its segments');
  const { tree, segments } = where.of;
  const rows: ListedStep[] = [];
  let low = order.descending || page.after === undefined ? 0n : page.after.stepNumber + 1n;
  let high = order.descending && page.after !== undefined ? page.after.stepNumber : (segments.at(-1)?.to ?? 0n);
  const { descending } = order;
  for (let width = BigInt(page.limit); low < high && rows.length < page.limit; width *= 4n) {
    if (width > BigInt(page.limit)) await nextIteration();
    const whole = clipSegments(
      segments,
      descending && high - width > low ? high - width : low,
      !descending && low + width < high ? low + width : high,
    );
    const window = descending ? whole.slice(-MOST_SEGMENTS) : whole.slice(0, MOST_SEGMENTS);
    const [first, last] = [window[0], window.at(-1)];
    if (first === undefined || last === undefined) break;
    const within = { ...where, of: { tree, segments: window } };
    rows.push(...(await rowsOf(scope, within, order, { after: undefined, limit: page.limit - rows.length })));
    if (descending) high = first.from;
    else low = last.to;
  }
  return rows;
}

/**
 * Sorts by reward or time: any step can be first, so reads the first steps of each batch of ranges and merges them.
 */
async function rowsInOrder(
  scope: ReadScope,
  where: StepFilter,
  order: StepSort,
  page: StepPage,
): Promise<ListedStep[]> {
  if (!('segments' in where.of) || where.of.segments.length <= MOST_SEGMENTS) {
    return rowsOf(scope, where, order, page);
  }
  const { tree, segments } = where.of;
  let first: ListedStep[] = [];
  for (const piece of piecesOf(segments)) {
    const within = { ...where, of: { tree, segments: piece } };
    const rows = await rowsOf(scope, within, order, page);
    first = [...first, ...rows].sort(byOrder(order)).slice(0, page.limit);
    await nextIteration();
  }
  return first;
}

/** Compares rows of several statements in the order of `orderBy`. */
function byOrder({ by, descending }: StepSort): (a: ListedStep, b: ListedStep) => number {
  const direction = descending ? -1 : 1;
  const compare = <T extends number | string>(a: T, b: T) => (a < b ? -direction : a > b ? direction : 0);
  const rank = ({ reward }: ListedStep) => (typeof reward === 'number' && !Number.isNaN(reward) ? reward : undefined);
  return (a, b) => {
    const ties = compare(a.key, b.key) || compare(a.stepNumber, b.stepNumber);
    if (by === 'TIME') return compare(a.commitTime, b.commitTime) || ties;
    const [one, other] = [rank(a), rank(b)];
    if (one === undefined || other === undefined)
      return Number(one === undefined) - Number(other === undefined) || ties;
    return compare(one, other) || ties;
  };
}

async function rowsOf(
  scope: ReadScope,
  where: StepFilter,
  order: StepSort,
  { after: cursor, limit }: Pick<StepPage, 'after' | 'limit'>,
): Promise<ListedStep[]> {
  const { engine } = scope;
  if ('segments' in where.of && where.of.segments.length === 0) return [];
  const conditions = [...filterConditions(scope, where), ...(cursor === undefined ? [] : [after(order, cursor)])];
  const rows = await engine.rows<
    [
      tree: number,
      key: number,
      ownerId: string,
      stepNumber: number,
      first: number,
      reward: number | string | null,
      commitTime: string,
    ]
  >(sql`
    ${'segments' in where.of ? sql`with ${segmentTable(engine, where.of.tree, where.of.segments)}, ${searchedSegments(engine)}` : sql``}
    select s.tree, s.trajectory, o.id, s.step_number, s.first_step_number, s.reward, s.commit_time
    from ${source(engine, where)}
    where ${sql.join(conditions, sql` and `)}
    order by ${orderBy(order)}
    limit ${limit}`);
  return rows.map(([tree, key, ownerId, stepNumber, first, reward, commitTime]) => {
    return { tree, key, ownerId, stepNumber, first, reward, commitTime };
  });
}

function source(engine: Engine, where: StepFilter): RawBuilder<unknown> {
  const trajectories = sql`${engine.table('trajectories')} as o`;
  const steps = sql`${engine.table('steps')} as s`;
  return 'segments' in where.of
    ? sql`p cross join ${trajectories} cross join ${steps}`
    : sql`${trajectories} cross join ${steps}`;
}

function filterConditions(scope: ReadScope, where: StepFilter): RawBuilder<unknown>[] {
  const conditions =
    'segments' in where.of
      ? [
          sql`o.tree = p.tree and o.key = p.key and o.namespace = ${scope.namespace}`,
          sql`s.tree = p.tree and s.trajectory = p.key and s.first_step_number >= p.first and s.first_step_number < p.hi`,
          sql`s.step_number >= p.lo and s.step_number < p.hi`,
        ]
      : [
          sql`o.namespace = ${scope.namespace} and ${belongs(scope, where.of)} and o.hidden = ${0}`,
          sql`s.tree = o.tree and s.trajectory = o.key`,
        ];
  if (where.terminalOnly === true) conditions.push(sql`(s.terminated = ${1} or s.truncated = ${1})`);
  if (where.hasState !== undefined) conditions.push(hasState(scope.engine, where.hasState));
  // SQLite stores the text 'NaN' and Postgres its own NaN; both would sort it above every number.
  if (where.minReward !== undefined) conditions.push(sql`s.reward <> 'NaN' and s.reward >= ${where.minReward}`);
  if (where.maxReward !== undefined) conditions.push(sql`s.reward <> 'NaN' and s.reward <= ${where.maxReward}`);
  if (where.commitTimeFrom !== undefined) conditions.push(sql`s.commit_time >= ${bindTimeBound(where.commitTimeFrom)}`);
  if (where.commitTimeTo !== undefined) conditions.push(sql`s.commit_time < ${bindTimeBound(where.commitTimeTo)}`);
  return conditions;
}

/** Condition on the trajectory `o` for its run, experiment or task. */
function belongs(
  { engine, namespace }: ReadScope,
  of: Exclude<StepFilter['of'], { readonly tree: bigint }>,
): RawBuilder<unknown> {
  if ('taskId' in of) return sql`o.task_id = ${of.taskId}`;
  const [column, table, id] =
    'runId' in of ? ['run', 'runs', of.runId] : ['experiment', 'experiments', of.experimentId];
  return sql`${sql.ref(`o.${column}`)} = (select b.key from ${engine.table(table as 'runs' | 'experiments')} as b
    where b.namespace = ${namespace} and b.id = ${id} and not b.hidden)`;
}

function hasState(engine: Engine, name: string | true): RawBuilder<unknown> {
  return sql`exists (select 1 from ${engine.table('step_states')} as e
    where e.tree = s.tree and e.trajectory = s.trajectory and e.step_number = s.step_number
      ${name === true ? sql`` : sql`and e.name = ${name}`})`;
}

function orderBy({ by, descending }: StepSort): RawBuilder<unknown> {
  const direction = descending ? sql`desc` : sql`asc`;
  if (by === 'NUMBER') return sql`s.step_number ${direction}, s.trajectory ${direction}`;
  const ties = sql`s.trajectory ${direction}, s.step_number ${direction}`;
  if (by === 'TIME') return sql`s.commit_time ${direction}, ${ties}`;
  return sql`${UNRANKED} asc, ${RANKED} ${direction}, ${ties}`;
}

/** Condition for rows after the cursor, in the order of `orderBy`. */
function after({ by, descending }: StepSort, cursor: StepCursor): RawBuilder<unknown> {
  const beyond = descending ? sql`<` : sql`>`;
  const key = sql`cast(${cursor.key} as bigint)`;
  const number = sql`cast(${cursor.stepNumber} as bigint)`;
  if (by === 'NUMBER') return sql`(s.step_number, s.trajectory) ${beyond} (${number}, ${key})`;
  const ties = sql`(s.trajectory, s.step_number) ${beyond} (${key}, ${number})`;
  if (by === 'TIME') {
    const time = formatInstant(cursor.commitTime, 6);
    return sql`(s.commit_time ${beyond} ${time} or (s.commit_time = ${time} and ${ties}))`;
  }
  const { reward } = cursor;
  if (reward === undefined || Number.isNaN(reward)) return sql`(${UNRANKED} = 1 and ${ties})`;
  return sql`(${UNRANKED} = 1 or ${RANKED} ${beyond} ${reward} or (${RANKED} = ${reward} and ${ties}))`;
}
