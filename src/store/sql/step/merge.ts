import { type SqlBool, sql } from 'kysely';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { MergeRequest } from '../../contract/merge.ts';
import type { Engine } from '../engine.ts';
import { SEGMENTS, type SegmentRow } from '../tables/steps.ts';
import { inLockOrder } from '../trajectory/heads.ts';
import { type Transaction, write } from '../transaction.ts';
import { isSet } from '../values.ts';
import { type Attachment, deleteAttachments, readAttachments, sameAttachments } from './attached.ts';
import { foldedRows } from './folded_rows.ts';
import { mergedRow } from './merged_row.ts';
import { SEGMENT_BYTES, SEGMENT_STEPS } from './segment.ts';
import { BODY_BYTES, COMPRESSED, STATES_BYTES } from './stored_body.ts';

/**
 * Bounds of the rows of one trajectory that a call looks at and replaces. A call leaves the other trajectories for the
 * next one when it has reached a bound: on SQLite nothing else is committed during its transaction.
 */
const MOST_ROWS = 256;
const MOST_BYTES = 1024 * 1024;

/** Bytes of the steps of a merged row with their small states. */
const MOST_WITH_STATES = 128 * 1024;

/** Rows with fewer bytes stay as they are, unless they are merged with others. */
const LEAST_COMPRESSED = 512;

/**
 * Merges rows of steps, in one transaction. Everything is prepared before it: under its locks, it checks that the rows
 * are still those that were read. Returns the requests that it did not finish.
 */
export async function mergeSteps(engine: Engine, requests: readonly MergeRequest[]): Promise<MergeRequest[]> {
  const left: MergeRequest[] = [];
  const prepared: Merging[] = [];
  let bytes = 0;
  let rows = 0;
  for (const request of requests) {
    if (bytes >= MOST_BYTES || rows >= MOST_ROWS) {
      left.push(request);
      continue;
    }
    const plan = await planMerge(engine, request);
    if (plan === undefined) continue;
    bytes += plan.bytes;
    if (plan.goesOn) left.push(request);
    const merging = await prepare(engine, request.ref, plan);
    for (const { replaced } of merging.rows) rows += replaced.length;
    prepared.push(merging);
  }
  if (prepared.length > 0) {
    prepared.sort((a, b) => inLockOrder(a.ref, b.ref));
    await write(engine, (tx) => replaceRows(tx, prepared));
  }
  return left;
}

/** What is merged of a trajectory. */
interface Merging {
  readonly ref: TrajectoryRef;
  readonly mergedFrom: bigint;
  readonly mergedTo: bigint;
  readonly rows: readonly Replacement[];
}

interface Replacement extends StepRange {
  readonly replaced: readonly Pick<SegmentRow, 'first_step_number' | 'next_step_number' | 'checksum' | 'state_names'>[];
  /** States that were attached to these steps, if some are folded into the rows. */
  readonly attached: readonly Attachment[];
  readonly folded: readonly Attachment[];
  readonly rows: readonly SegmentRow[];
}

interface StepRange {
  readonly from: bigint;
  readonly to: bigint;
}

interface PlannedRange extends StepRange {
  /** States were attached to its steps. */
  readonly hasAttached: boolean;
}

interface Plan {
  readonly ranges: readonly PlannedRange[];
  readonly mergedFrom: bigint;
  readonly mergedTo: bigint;
  readonly bytes: number;
  /** There are more rows to look at. */
  readonly goesOn: boolean;
}

/** Returns undefined if the trajectory does not exist or all its rows are merged. */
async function planMerge(engine: Engine, { ref: { tree, key }, rest }: MergeRequest): Promise<Plan | undefined> {
  const head = await engine.db
    .selectFrom('trajectories as t')
    .select(['t.merged_to', 't.next_step_number', hasAttached(engine).as('attached')])
    .where('t.tree', '=', tree)
    .where('t.key', '=', key)
    .where('t.purging', '=', 0)
    .executeTakeFirst();
  if (head === undefined || head.merged_to >= head.next_step_number) return undefined;
  const rows = await engine.db
    .selectFrom('segments as s')
    .select(['s.first_step_number as from', 's.next_step_number as to', 's.encoding'])
    .select([BODY_BYTES.as('bytes'), STATES_BYTES.as('stateBytes')])
    .where('s.tree', '=', tree)
    .where('s.trajectory', '=', key)
    .where('s.first_step_number', '>=', head.merged_to)
    .orderBy('s.first_step_number')
    .limit(MOST_ROWS)
    .execute();
  const attached = isSet(head.attached) ? await attachedBytes(engine, { tree, key }, rows) : NOTHING_ATTACHED;
  const ranges: PlannedRange[] = [];
  const mergedFrom = head.merged_to;
  let mergedTo = mergedFrom;
  let bytes = 0;
  let open: OpenRange | undefined;
  const close = (range: OpenRange) => {
    if (!range.isWorthIt) return;
    ranges.push(range.range);
    bytes += range.bytes;
  };
  for (const row of rows) {
    const sized = { ...row, attachedBytes: attached.get(row.from) };
    if (open !== undefined && !open.hasRoomFor(sized)) {
      close(open);
      mergedTo = open.range.to;
      open = undefined;
    }
    if (bytes >= MOST_BYTES) return { ranges, mergedFrom, mergedTo, bytes, goesOn: true };
    open ??= new OpenRange(row.from);
    open.add(sized);
  }
  const goesOn = rows.length === MOST_ROWS;
  if (open !== undefined && (open.isFull || (rest && !goesOn))) {
    close(open);
    // A row with room for more steps is merged again with those that follow.
    mergedTo = open.isHalfEmpty ? open.range.from : open.range.to;
  }
  return ranges.length === 0 && mergedTo === mergedFrom ? undefined : { ranges, mergedFrom, mergedTo, bytes, goesOn };
}

/** Whether states that can be folded were attached to steps that are not merged, of a trajectory `t`. */
function hasAttached(engine: Engine) {
  return sql<boolean | bigint>`exists (select 1 from ${engine.table('attached_states')} as a
    where a.tree = t.tree and a.trajectory = t.key and a.step_number >= t.merged_to and a.attach_time is not null)`;
}

/** Returns the bytes of the states that were attached to steps of these rows, by the first step of the row. */
async function attachedBytes(
  engine: Engine,
  { tree, key }: TrajectoryRef,
  rows: readonly StepRange[],
): Promise<ReadonlyMap<bigint, number>> {
  const [first, last] = [rows[0], rows.at(-1)];
  const found = new Map<bigint, number>();
  if (first === undefined || last === undefined) return found;
  const attached = await engine.db
    .selectFrom('attached_states')
    .select(['step_number', sql<bigint>`coalesce(octet_length(data), 0)`.as('bytes')])
    .where('tree', '=', tree)
    .where('trajectory', '=', key)
    .where('step_number', '>=', first.from)
    .where('step_number', '<', last.to)
    .where('attach_time', 'is not', null)
    .orderBy('step_number')
    .execute();
  let at = 0;
  for (const { step_number, bytes } of attached) {
    while (rows[at]!.to <= step_number) at += 1;
    const { from } = rows[at]!;
    found.set(from, (found.get(from) ?? 0) + Number(bytes));
  }
  return found;
}

const NOTHING_ATTACHED: ReadonlyMap<bigint, number> = new Map();

interface RowSize extends StepRange {
  readonly encoding: bigint;
  /** Of the steps. */
  readonly bytes: bigint;
  /** Of their small states. */
  readonly stateBytes: bigint;
  /** Of the states that were attached to them. Undefined if there are none. */
  readonly attachedBytes: number | undefined;
}

/** Consecutive rows that become one. */
class OpenRange {
  readonly #from: bigint;
  #to: bigint;
  #rows = 0;
  #bytes = 0;
  #stateBytes = 0;
  #isCompressed = false;
  #hasAttached = false;

  constructor(from: bigint) {
    this.#from = from;
    this.#to = from;
  }

  get range(): PlannedRange {
    return { from: this.#from, to: this.#to, hasAttached: this.#hasAttached };
  }

  /** Of its steps with their small states. */
  get bytes(): number {
    return this.#bytes + this.#stateBytes;
  }

  get #steps(): number {
    return Number(this.#to - this.#from);
  }

  get isFull(): boolean {
    return this.#steps >= SEGMENT_STEPS || this.#bytes >= SEGMENT_BYTES || this.bytes >= MOST_WITH_STATES;
  }

  get isHalfEmpty(): boolean {
    return this.#steps < SEGMENT_STEPS / 2 && this.#bytes < SEGMENT_BYTES / 2 && this.bytes < MOST_WITH_STATES / 2;
  }

  /** A single row is only compressed, or gets the states that were attached. */
  get isWorthIt(): boolean {
    return this.#rows > 1 || this.#hasAttached || (!this.#isCompressed && this.bytes >= LEAST_COMPRESSED);
  }

  hasRoomFor({ from, to, bytes, stateBytes, attachedBytes = 0 }: RowSize): boolean {
    const stepBytes = this.#bytes + Number(bytes);
    return (
      from === this.#to &&
      Number(to - this.#from) <= SEGMENT_STEPS &&
      stepBytes <= SEGMENT_BYTES &&
      stepBytes + this.#stateBytes + Number(stateBytes) + attachedBytes <= MOST_WITH_STATES
    );
  }

  add({ to, bytes, stateBytes, attachedBytes, encoding }: RowSize): void {
    this.#to = to;
    this.#rows += 1;
    this.#bytes += Number(bytes);
    this.#stateBytes += Number(stateBytes) + (attachedBytes ?? 0);
    this.#isCompressed = encoding === COMPRESSED;
    this.#hasAttached ||= attachedBytes !== undefined;
  }
}

async function prepare(engine: Engine, ref: TrajectoryRef, plan: Plan): Promise<Merging> {
  const rows: Replacement[] = [];
  for (const range of plan.ranges) rows.push(...(await replacementsOf(engine, ref, range)));
  const last = rows.at(-1);
  // States that stay in rows of their own would be found again and again.
  const isLeft = last !== undefined && last.from === plan.mergedTo && last.folded.length < last.attached.length;
  return { ref, mergedFrom: plan.mergedFrom, mergedTo: isLeft ? last.to : plan.mergedTo, rows };
}

/** Returns nothing if a row is damaged. */
async function replacementsOf(
  engine: Engine,
  ref: TrajectoryRef,
  { from, to, hasAttached }: PlannedRange,
): Promise<Replacement[]> {
  const replaced = await engine.db
    .selectFrom('segments')
    .selectAll()
    .where('tree', '=', ref.tree)
    .where('trajectory', '=', ref.key)
    .where('first_step_number', '>=', from)
    .where('first_step_number', '<', to)
    .orderBy('first_step_number')
    .execute();
  if (replaced.length === 0) return [];
  if (!hasAttached) {
    const row = await mergedRow(replaced);
    return row === undefined ? [] : [{ from, to, replaced, attached: [], folded: [], rows: [row] }];
  }
  const attached = await readAttachments(engine.db, ref, { from, to });
  const folded = await foldedRows(replaced, attached);
  return folded === undefined ? [] : [{ from, to, replaced, attached, ...folded }];
}

/** Locks the trajectories against deletion, but not against appends. */
async function replaceRows(tx: Transaction, prepared: readonly Merging[]): Promise<void> {
  const merged: SegmentRow[] = [];
  const done: Merging[] = [];
  for (const merging of prepared) {
    const { tree, key } = merging.ref;
    const trajectory = tx.db
      .selectFrom('trajectories')
      .select('key')
      .where('tree', '=', tree)
      .where('key', '=', key)
      .where('purging', '=', 0);
    if ((await tx.engine.lock(trajectory, 'keep').executeTakeFirst()) === undefined) continue;
    let isDone = true;
    for (const each of merging.rows) {
      if (await removeRows(tx, merging.ref, each)) merged.push(...each.rows);
      else isDone = false;
    }
    if (isDone) done.push(merging);
  }
  await tx.engine.insertRows(tx.db, SEGMENTS, merged);
  for (const merging of done) await advance(tx, merging);
}

/**
 * Does not wait for a writer that holds the trajectory, because that one may wait for the rows. Then a later merge looks
 * at the same rows again, as it does if a state was attached to an earlier row meanwhile.
 */
async function advance(tx: Transaction, { ref: { tree, key }, mergedFrom, mergedTo }: Merging): Promise<void> {
  if (mergedTo === mergedFrom) return;
  const trajectory = tx.db
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where('key', '=', key)
    .where('merged_to', '=', mergedFrom);
  if ((await tx.engine.lockFree(trajectory, 'write').executeTakeFirst()) === undefined) return;
  await tx.db
    .updateTable('trajectories')
    .set({ merged_to: mergedTo })
    .where('tree', '=', tree)
    .where('key', '=', key)
    .execute();
}

/** Returns false, and removes nothing, if the rows are not those that were read. */
async function removeRows(
  tx: Transaction,
  ref: TrajectoryRef,
  { from, to, replaced, attached, folded }: Replacement,
): Promise<boolean> {
  const { tree, key } = ref;
  const found = await tx.engine
    .lock(
      tx.db
        .selectFrom('segments')
        .select(['first_step_number', 'next_step_number', 'checksum', 'state_names'])
        .where('tree', '=', tree)
        .where('trajectory', '=', key)
        .where('first_step_number', '>=', from)
        .where('first_step_number', '<', to)
        .orderBy('first_step_number'),
      'delete',
    )
    .execute();
  const isSame = found.every((each, i) => {
    const read = replaced[i];
    if (read === undefined || each.next_step_number !== read.next_step_number) return false;
    // Attaching a state changes only the names.
    return each.checksum === read.checksum && each.state_names === read.state_names;
  });
  if (found.length !== replaced.length || !isSame) return false;
  if (attached.length > 0 && !sameAttachments(await readAttachments(tx.db, ref, { from, to }), attached)) return false;
  await tx.db
    .deleteFrom('segments')
    .where('tree', '=', tree)
    .where('trajectory', '=', key)
    .where('first_step_number', '>=', from)
    .where('first_step_number', '<', to)
    .execute();
  await deleteAttachments(tx, ref, folded);
  return true;
}

export async function findUnmerged(
  engine: Engine,
  after: TrajectoryRef | undefined,
  limit: number,
  idleSeconds: number,
) {
  const segments = engine.table('segments');
  // A single row stays as it is. `merged_to` is its first step, if it has room for more.
  const unmerged = sql<boolean | bigint>`(t.merged_to < t.next_step_number and not t.purging
    and t.update_time < ${engine.hoursAgo(idleSeconds / 3600)}
    and (exists (select 1 from ${segments} as s
      where s.tree = t.tree and s.trajectory = t.key and s.first_step_number > t.merged_to)
      or ${hasAttached(engine)}))`;
  const rows = await engine.db
    .selectFrom('trajectories as t')
    .select(['t.tree', 't.key', unmerged.as('unmerged')])
    .$if(after !== undefined, (query) => query.where(sql<SqlBool>`(t.tree, t.key) > (${after!.tree}, ${after!.key})`))
    .orderBy('t.tree')
    .orderBy('t.key')
    .limit(limit)
    .execute();
  const last = rows.length < limit ? undefined : rows.at(-1);
  return { found: rows.filter((row) => isSet(row.unmerged)).map(refOf), next: last && refOf(last) };
}

function refOf({ tree, key }: TrajectoryRef): TrajectoryRef {
  return { tree, key };
}
