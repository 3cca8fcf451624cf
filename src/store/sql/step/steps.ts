import { type RawBuilder, sql } from 'kysely';
import { clipSegments, ownerOf, type Segment } from '../../../domain/lineage.ts';
import type { StateRef } from '../../../domain/step.ts';
import { compareText } from '../../../domain/text_order.ts';
import type { OwnedState, OwnedStep, StepOutline, StepRange, StepView } from '../../contract/step.ts';
import type { Engine } from '../engine.ts';
import { nextTurn } from '../reading/next_turn.ts';
import { MOST_SEGMENTS, segmentTable } from '../trajectory/segments.ts';
import type { ReadScope } from '../transaction.ts';
import { readDigest, readOptionalReal } from '../values.ts';
import { BASIC, FULL, readStateRef, type StateRow, StepReader, type StepRow } from './rows.ts';

export async function readSteps(
  { engine, namespace }: ReadScope,
  tree: bigint,
  segments: readonly Segment[],
  range: StepRange,
  view: StepView,
): Promise<OwnedStep[]> {
  const last = range.from + BigInt(range.maxSteps);
  const window = clipSegments(segments, range.from, last < range.to ? last : range.to);
  if (window.length === 0) return [];
  // Running byte sums turn a page of bounded size into a range condition. The first step of each owner has the owner's
  // id.
  const rows = await engine.rows<StepRow>(sql`
    with ${segmentTable(engine, tree, window)}
    select s.step_number - ${range.from}, case when s.step_number = g.lo then o.id end, ${view === 'FULL' ? FULL : BASIC}
    from g
    cross join ${engine.table('trajectories')} as o
    cross join ${engine.table('steps')} as s
    where o.tree = g.tree and o.key = g.key and o.namespace = ${namespace}
      and s.tree = g.tree and s.trajectory = g.key and s.step_number >= g.lo and s.step_number < g.hi
      and (s.step_number = ${range.from} or s.byte_sum <= ${bytesBefore(engine, tree, segments, range.from)} + ${BigInt(range.maxBytes)})
    order by s.step_number`);
  const end = rows.at(-1)?.[0];
  if (end === undefined) return [];
  const owned = clipSegments(window, range.from, range.from + BigInt(end) + 1n);
  const { states, wholeEnd } = await readStates(engine, tree, owned, range.from);
  // Steps whose states may have been deleted between the statements are treated as deleted.
  const whole = rows.filter(([number]) => number < wholeEnd);
  return stepsOf(whole, range.from, owned, new StatesInOrder(states));
}

/** `from` is the step number that the numbers of the rows are relative to. */
function stepsOf(
  rows: readonly StepRow[],
  from: bigint,
  segments: readonly Segment[],
  states: StatesInOrder,
): OwnedStep[] {
  const reader = new StepReader();
  const steps: OwnedStep[] = [];
  let at = 0;
  let owner: OwnedStep['owner'] | undefined;
  for (const row of rows) {
    const [number, ownerId] = row;
    const stepNumber = from + BigInt(number);
    for (; segments[at]!.to <= stepNumber; at += 1) owner = undefined;
    if (ownerId !== null) owner = { key: segments[at]!.key, id: ownerId };
    // A segment without its first step was deleted. The caller detects the gap.
    if (owner === undefined) break;
    steps.push({ owner, step: reader.read(stepNumber, row, states.of(number)) });
  }
  return steps;
}

/** Running byte sum before a step; 0 at the beginning. */
function bytesBefore(engine: Engine, tree: bigint, segments: readonly Segment[], from: bigint): RawBuilder<bigint> {
  const owner = ownerOf(segments, from - 1n);
  if (owner === undefined) return sql`0`;
  return sql`coalesce((select b.byte_sum from ${engine.table('steps')} as b
    where b.tree = ${tree} and b.trajectory = ${owner} and b.step_number = ${from - 1n}), 0)`;
}

interface ReadStates {
  /** In order of step number, relative to the page. */
  readonly states: readonly StateRow[];
  /** First step, relative to the page, whose states may be missing because steps were deleted. */
  readonly wholeEnd: number;
}

/**
 * Reads the states of steps that were read before. The same statement checks that the first and the last step of each
 * segment still exist. Deletions remove whole ranges from an end, each step with its states, so then all states exist
 * too.
 */
async function readStates(
  engine: Engine,
  tree: bigint,
  segments: readonly Segment[],
  from: bigint,
): Promise<ReadStates> {
  const rows = await engine.rows<StateRow | [end: number, name: null]>(sql`
    with ${segmentTable(engine, tree, segments)}
    select s.step_number - ${from}, s.name, ${engine.hex(sql`s.digest`)}, s.media_type, s.size
    from g
    cross join ${engine.table('step_states')} as s
    where s.tree = g.tree and s.trajectory = g.key and s.step_number >= g.lo and s.step_number < g.hi
    union all
    select g.hi - ${from}, null, null, null, null
    from g
    where ${hasStep(engine, sql`g.lo`)} and ${hasStep(engine, sql`g.hi - 1`)}
    order by 1`);
  const states: StateRow[] = [];
  const wholeEnds = new Set<number>();
  for (const row of rows) {
    if (row[1] === null) wholeEnds.add(row[0]);
    else states.push(row);
  }
  const broken = segments.find(({ to }) => !wholeEnds.has(Number(to - from)));
  return { states, wholeEnd: broken === undefined ? Number.POSITIVE_INFINITY : Number(broken.from - from) };
}

/** Not `exists`: without statistics, Postgres made a join of it and read all earlier steps for each page. */
function hasStep(engine: Engine, number: RawBuilder<unknown>): RawBuilder<unknown> {
  return sql`(select 1 from ${engine.table('steps')} as e
    where e.tree = g.tree and e.trajectory = g.key and e.step_number = ${number}) is not null`;
}

/** Returns the states of each step, sorted by name. Steps must be requested in ascending order. */
class StatesInOrder {
  readonly #rows: readonly StateRow[];
  #at = 0;

  constructor(rows: readonly StateRow[]) {
    this.#rows = rows;
  }

  of(number: number): readonly StateRef[] | undefined {
    const rows = this.#rows;
    while (this.#at < rows.length && rows[this.#at]![0] < number) this.#at += 1;
    let states: StateRef[] | undefined;
    for (; this.#at < rows.length && rows[this.#at]![0] === number; this.#at += 1) {
      const state = readStateRef(rows[this.#at]!);
      if (states === undefined) states = [state];
      else states.push(state);
    }
    return states === undefined || states.length === 1 ? states : sortStates(states);
  }
}

export function sortStates(states: StateRef[]): StateRef[] {
  return states.sort((a, b) => compareText(a.name, b.name));
}

export async function readOutlines(
  { engine, db, namespace }: ReadScope,
  tree: bigint,
  segments: readonly Segment[],
  from: bigint,
  limit: number,
): Promise<StepOutline[]> {
  const window = clipSegments(segments, from, from + BigInt(limit));
  if (window.length === 0) return [];
  const { rows } = await sql<{ step_number: bigint; reward: number | string | null; content_digest: Uint8Array }>`
    with ${segmentTable(engine, tree, window)}
    select s.step_number, s.reward, s.content_digest
    from g
    cross join ${engine.table('steps')} as s
    where s.tree = g.tree and s.namespace = ${namespace}
      and s.trajectory = g.key and s.step_number >= g.lo and s.step_number < g.hi
    order by s.step_number`.execute(db);
  return rows.map((row) => ({
    stepNumber: row.step_number,
    reward: readOptionalReal(row.reward),
    contentDigest: readDigest(row.content_digest),
  }));
}

export async function findCheckpoint(
  scope: ReadScope,
  tree: bigint,
  segments: readonly Segment[],
  atOrBefore: bigint,
  names: readonly string[],
): Promise<OwnedStep | undefined> {
  const searched = clipSegments(segments, 0n, atOrBefore + 1n);
  // From the leaf to the root, with few segments first: a near checkpoint is found quickly, and a deep lineage needs
  // few statements.
  let end = searched.length;
  for (let count = 1; end > 0; count = Math.min(count * 4, MOST_SEGMENTS)) {
    const piece = searched.slice(Math.max(end - count, 0), end);
    const number = await latestWith(scope.engine, tree, piece, names);
    if (number !== undefined) {
      const range = { from: number, to: number + 1n, maxSteps: 1, maxBytes: 0 };
      const [found] = await readSteps(scope, tree, segments, range, 'FULL');
      return found;
    }
    end -= piece.length;
    if (end > 0) await nextTurn();
  }
  return undefined;
}

/** Each segment is searched from the end of a range of the primary key. */
async function latestWith(
  engine: Engine,
  tree: bigint,
  segments: readonly Segment[],
  names: readonly string[],
): Promise<bigint | undefined> {
  const states = engine.table('step_states');
  const [first, ...others] = names;
  const conditions = [
    sql`a.tree = g.tree and a.trajectory = g.key and a.step_number >= g.lo and a.step_number < g.hi`,
    ...(first === undefined ? [] : [sql`a.name = ${first}`]),
    ...others.map(
      (name) => sql`exists (select 1 from ${states} as b
        where b.tree = a.tree and b.trajectory = a.trajectory and b.step_number = a.step_number and b.name = ${name})`,
    ),
  ];
  const { rows } = await sql<{ latest: bigint | null }>`
    with ${segmentTable(engine, tree, segments)}
    select max((select a.step_number from ${states} as a where ${sql.join(conditions, sql` and `)}
      order by a.step_number desc limit 1)) as latest
    from g`.execute(engine.db);
  return rows[0]?.latest ?? undefined;
}

export async function listStepStates(
  { engine, namespace }: ReadScope,
  tree: bigint,
  segments: readonly Segment[],
  { name, from, limit }: { readonly name: string; readonly from: bigint; readonly limit: number },
): Promise<OwnedState[]> {
  const end = segments.at(-1)?.to ?? 0n;
  const found: OwnedState[] = [];
  // States may be rare. Windows of step numbers grow until the page is full, so that no statement sorts a whole
  // history.
  let width = BigInt(limit);
  for (let begin = from, next = from; begin < end && found.length < limit; begin = next) {
    if (begin > from) await nextTurn();
    const whole = clipSegments(segments, begin, begin + width);
    const window = whole.slice(0, MOST_SEGMENTS);
    next = window.length < whole.length ? window.at(-1)!.to : begin + width;
    width *= 4n;
    if (window.length === 0) continue;
    const rows = await engine.rows<[...StateRow, key: number, ownerId: string]>(sql`
      with ${segmentTable(engine, tree, window)}
      select s.step_number - ${begin}, s.name, ${engine.hex(sql`s.digest`)}, s.media_type, s.size, s.trajectory, o.id
      from g
      cross join ${engine.table('trajectories')} as o
      cross join ${engine.table('step_states')} as s
      where o.tree = g.tree and o.key = g.key and o.namespace = ${namespace}
        and s.tree = g.tree and s.trajectory = g.key and s.step_number >= g.lo and s.step_number < g.hi
        and s.name = ${name}
      order by s.step_number
      limit ${limit - found.length}`);
    for (const [number, name, digest, mediaType, size, key, id] of rows) {
      const state = { name, digest, mediaType, size };
      found.push({ owner: { key: BigInt(key), id }, stepNumber: begin + BigInt(number), state });
    }
  }
  return found;
}
