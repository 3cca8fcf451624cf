import { type RawBuilder, sql } from 'kysely';
import { formatInstant } from '../../../domain/instant.ts';
import { clipSegments } from '../../../domain/lineage.ts';
import type { StateRef } from '../../../domain/step.ts';
import { tupleKey } from '../../../domain/tuple_key.ts';
import type { OwnedStep, StepCursor, StepFilter, StepPage, StepSort, StepView } from '../../contract/step.ts';
import type { Engine } from '../engine.ts';
import { nextTurn } from '../reading/next_turn.ts';
import { MOST_SEGMENTS, piecesOf, segmentTable } from '../trajectory/segments.ts';
import type { ReadScope } from '../transaction.ts';
import { bindTimeBound } from '../values.ts';
import { BASIC, PAYLOAD, StepReader, type StepRow } from './rows.ts';
import { sortStates } from './steps.ts';

interface ListedStep {
  readonly tree: number;
  readonly key: number;
  readonly bytes: number;
  readonly row: StepRow;
}

/** Missing and NaN rewards sort last in both directions (W11). */
const UNRANKED = sql<number>`(case when s.reward is null or s.reward = 'NaN' then 1 else 0 end)`;
const RANKED = sql<number>`(case when s.reward = 'NaN' then null else s.reward end)`;
const BYTES = sql<bigint>`(octet_length(s.actions) + octet_length(s.observations) + octet_length(s.info_json) + octet_length(s.metadata_json) + octet_length(s.metrics))`;

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
        ? await rowsOfLineage(scope, where, order, page, view)
        : await rowsInOrder(scope, where, order, page, view);
    const steps = await withStates(scope.engine, cutAtBytes(rows, page.maxBytes), view);
    // Undefined: steps were deleted between the statements, so the page is read again.
    if (steps !== undefined) return steps;
  }
}

/** Returns the steps with states and payloads; undefined if one of the steps was deleted. */
async function withStates(
  engine: Engine,
  kept: readonly ListedStep[],
  view: StepView,
): Promise<OwnedStep[] | undefined> {
  if (kept.length === 0) return [];
  const [states, payloads] = await Promise.all([
    statesOf(engine, kept),
    view === 'FULL' ? payloadsOf(engine, kept) : undefined,
  ]);
  const reader = new StepReader();
  const steps: OwnedStep[] = [];
  for (const { key, row } of kept) {
    const [number, ownerId] = row;
    const place = tupleKey(key, number);
    const statesHere = states.get(place);
    const payload = payloads === undefined ? [] : payloads.get(place);
    if (statesHere === undefined || payload === undefined) return undefined;
    const whole = [...row, ...payload] as unknown as StepRow;
    const step = reader.read(BigInt(number), whole, statesHere);
    steps.push({ owner: { key: BigInt(key), id: ownerId ?? '' }, step });
  }
  return steps;
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
  view: StepView,
): Promise<ListedStep[]> {
  if (!('segments' in where.of)) throw new Error('steps of a lineage are asked for by its segments');
  const { tree, segments } = where.of;
  const rows: ListedStep[] = [];
  let low = order.descending || page.after === undefined ? 0n : page.after.stepNumber + 1n;
  let high = order.descending && page.after !== undefined ? page.after.stepNumber : (segments.at(-1)?.to ?? 0n);
  const { descending } = order;
  for (let width = BigInt(page.limit); low < high && rows.length < page.limit; width *= 4n) {
    if (width > BigInt(page.limit)) await nextTurn();
    const whole = clipSegments(
      segments,
      descending && high - width > low ? high - width : low,
      !descending && low + width < high ? low + width : high,
    );
    const window = descending ? whole.slice(-MOST_SEGMENTS) : whole.slice(0, MOST_SEGMENTS);
    const [first, last] = [window[0], window.at(-1)];
    if (first === undefined || last === undefined) break;
    const within = { ...where, of: { tree, segments: window } };
    rows.push(...(await rowsOf(scope, within, order, { after: undefined, limit: page.limit - rows.length }, view)));
    if (descending) high = first.from;
    else low = last.to;
  }
  return rows;
}

/** By reward or time, any step can be first, so each batch of segments is asked for its first steps. */
async function rowsInOrder(
  scope: ReadScope,
  where: StepFilter,
  order: StepSort,
  page: StepPage,
  view: StepView,
): Promise<ListedStep[]> {
  if (!('segments' in where.of) || where.of.segments.length <= MOST_SEGMENTS) {
    return rowsOf(scope, where, order, page, view);
  }
  const { tree, segments } = where.of;
  let first: ListedStep[] = [];
  for (const piece of piecesOf(segments)) {
    const within = { ...where, of: { tree, segments: piece } };
    const rows = await rowsOf(scope, within, order, page, view);
    first = [...first, ...rows].sort(byOrder(order)).slice(0, page.limit);
    await nextTurn();
  }
  return first;
}

/** Compares rows of several statements in the order of `orderBy`. */
function byOrder({ by, descending }: StepSort): (a: ListedStep, b: ListedStep) => number {
  const direction = descending ? -1 : 1;
  const compare = <T extends number | string>(a: T, b: T) => (a < b ? -direction : a > b ? direction : 0);
  const reward = ({ row }: ListedStep) => (typeof row[2] === 'number' && !Number.isNaN(row[2]) ? row[2] : undefined);
  const time = ({ row }: ListedStep) => row[7];
  return (a, b) => {
    const ties = compare(a.key, b.key) || compare(a.row[0], b.row[0]);
    if (by === 'TIME') return compare(time(a), time(b)) || ties;
    const [one, other] = [reward(a), reward(b)];
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
  view: StepView,
): Promise<ListedStep[]> {
  const { engine } = scope;
  if ('segments' in where.of && where.of.segments.length === 0) return [];
  const conditions = [...filterConditions(scope, where), ...(cursor === undefined ? [] : [after(order, cursor)])];
  const rows = await engine.rows<[tree: number, key: number, bytes: number, ...StepRow]>(sql`
    ${'segments' in where.of ? sql`with ${segmentTable(engine, where.of.tree, where.of.segments)}` : sql``}
    select s.tree, s.trajectory, ${view === 'FULL' ? BYTES : sql`0`}, s.step_number, o.id, ${BASIC}
    from ${source(engine, where)}
    where ${sql.join(conditions, sql` and `)}
    order by ${orderBy(order)}
    limit ${limit}`);
  return rows.map(([tree, key, bytes, ...row]) => ({ tree, key, bytes, row }));
}

function source(engine: Engine, where: StepFilter): RawBuilder<unknown> {
  const trajectories = sql`${engine.table('trajectories')} as o`;
  const steps = sql`${engine.table('steps')} as s`;
  return 'segments' in where.of
    ? sql`g cross join ${trajectories} cross join ${steps}`
    : sql`${trajectories} cross join ${steps}`;
}

function filterConditions(scope: ReadScope, where: StepFilter): RawBuilder<unknown>[] {
  const conditions =
    'segments' in where.of
      ? [
          sql`o.tree = g.tree and o.key = g.key and o.namespace = ${scope.namespace}`,
          sql`s.tree = g.tree and s.trajectory = g.key and s.step_number >= g.lo and s.step_number < g.hi`,
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

/** Returns the rows that fit into `maxBytes`, at least one. */
function cutAtBytes(rows: readonly ListedStep[], maxBytes: number): readonly ListedStep[] {
  let bytes = 0;
  const cut = rows.findIndex((row, i) => {
    bytes += row.bytes;
    return i > 0 && bytes > maxBytes;
  });
  return cut === -1 ? rows : rows.slice(0, cut);
}

/** Condition on `s` for these steps. */
function among(steps: readonly ListedStep[]): RawBuilder<unknown> {
  const rows = steps.map(
    ({ tree, key, row }) =>
      sql`(cast(${BigInt(tree)} as bigint), cast(${BigInt(key)} as bigint), cast(${BigInt(row[0])} as bigint))`,
  );
  return sql`(s.tree, s.trajectory, s.step_number) in (values ${sql.join(rows)})`;
}

/** Returns the states of each step that still exists, including an empty list for steps without states. */
async function statesOf(engine: Engine, steps: readonly ListedStep[]): Promise<Map<string, StateRef[]>> {
  type Row = [number: number, name: string | null, digest: string, mediaType: string, size: number, key: number];
  const rows = await engine.rows<Row>(sql`
    select s.step_number, e.name, ${engine.hex(sql`e.digest`)}, e.media_type, e.size, s.trajectory
    from ${engine.table('steps')} as s
    left join ${engine.table('step_states')} as e
      on e.tree = s.tree and e.trajectory = s.trajectory and e.step_number = s.step_number
    where ${among(steps)}`);
  const states = new Map<string, StateRef[]>();
  for (const [number, name, digest, mediaType, size, key] of rows) {
    const place = tupleKey(key, number);
    const list = states.get(place) ?? [];
    states.set(place, list);
    if (name !== null) list.push({ name, digest, mediaType, size });
  }
  for (const list of states.values()) sortStates(list);
  return states;
}

type Payload = readonly (string | null)[];

async function payloadsOf(engine: Engine, steps: readonly ListedStep[]): Promise<Map<string, Payload>> {
  const rows = await engine.rows<[key: number, stepNumber: number, ...Payload]>(sql`
    select s.trajectory, s.step_number, ${PAYLOAD}
    from ${engine.table('steps')} as s where ${among(steps)}`);
  return new Map(rows.map(([key, number, ...payload]) => [tupleKey(key, number), payload]));
}
