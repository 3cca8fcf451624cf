import { type SqlBool, sql } from 'kysely';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { MergeRequest } from '../../contract/merge.ts';
import type { Engine } from '../engine.ts';
import { SEGMENTS, type SegmentRow } from '../tables/steps.ts';
import { inLockOrder } from '../trajectory/heads.ts';
import { type Transaction, write } from '../transaction.ts';
import { isSet } from '../values.ts';
import { mergedRow } from './merged_row.ts';
import { SEGMENT_BYTES, SEGMENT_STEPS } from './segment.ts';
import { BODY_BYTES, COMPRESSED, STATES_BYTES } from './stored_body.ts';

/** Bounds of the rows that one call looks at and replaces. */
const MOST_ROWS = 512;
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
  for (const request of requests) {
    if (bytes >= MOST_BYTES) {
      left.push(request);
      continue;
    }
    const plan = await planMerge(engine, request);
    if (plan === undefined) continue;
    bytes += plan.bytes;
    if (plan.goesOn) left.push(request);
    prepared.push({
      ref: request.ref,
      mergedTo: plan.mergedTo,
      rows: await mergedRows(engine, request.ref, plan.ranges),
    });
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
  readonly mergedTo: bigint;
  readonly rows: readonly Replacement[];
}

interface Replacement {
  readonly replaced: readonly Pick<SegmentRow, 'first_step_number' | 'next_step_number' | 'checksum' | 'state_names'>[];
  readonly row: SegmentRow;
}

interface StepRange {
  readonly from: bigint;
  readonly to: bigint;
}

interface Plan {
  /** Each is replaced by one row. */
  readonly ranges: readonly StepRange[];
  readonly mergedTo: bigint;
  readonly bytes: number;
  /** There are more rows to look at. */
  readonly goesOn: boolean;
}

/** Returns undefined if the trajectory does not exist or all its rows are merged. */
async function planMerge(engine: Engine, { ref: { tree, key }, rest }: MergeRequest): Promise<Plan | undefined> {
  const head = await engine.db
    .selectFrom('trajectories')
    .select(['merged_to', 'next_step_number'])
    .where('tree', '=', tree)
    .where('key', '=', key)
    .where('purging', '=', 0)
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
  const ranges: StepRange[] = [];
  let mergedTo = head.merged_to;
  let bytes = 0;
  let open: OpenRange | undefined;
  for (const row of rows) {
    if (open !== undefined && !open.hasRoomFor(row)) {
      if (open.isWorthIt) ranges.push(open.range);
      mergedTo = open.range.to;
      open = undefined;
    }
    if (bytes >= MOST_BYTES) return { ranges, mergedTo, bytes, goesOn: true };
    open ??= new OpenRange(row.from);
    open.add(row);
    bytes += Number(row.bytes) + Number(row.stateBytes);
  }
  const goesOn = rows.length === MOST_ROWS;
  if (open !== undefined && (open.isFull || (rest && !goesOn))) {
    if (open.isWorthIt) ranges.push(open.range);
    // A row with room for more steps is merged again with those that follow.
    mergedTo = open.isHalfEmpty ? open.range.from : open.range.to;
  }
  return ranges.length === 0 && mergedTo === head.merged_to ? undefined : { ranges, mergedTo, bytes, goesOn };
}

interface RowSize extends StepRange {
  readonly encoding: bigint;
  /** Of the steps. */
  readonly bytes: bigint;
  /** Of their small states. */
  readonly stateBytes: bigint;
}

/** Consecutive rows that become one. */
class OpenRange {
  readonly #from: bigint;
  #to: bigint;
  #rows = 0;
  #bytes = 0;
  #stateBytes = 0;
  #isCompressed = false;

  constructor(from: bigint) {
    this.#from = from;
    this.#to = from;
  }

  get range(): StepRange {
    return { from: this.#from, to: this.#to };
  }

  get #all(): number {
    return this.#bytes + this.#stateBytes;
  }

  get #steps(): number {
    return Number(this.#to - this.#from);
  }

  get isFull(): boolean {
    return this.#steps >= SEGMENT_STEPS || this.#bytes >= SEGMENT_BYTES || this.#all >= MOST_WITH_STATES;
  }

  get isHalfEmpty(): boolean {
    return this.#steps < SEGMENT_STEPS / 2 && this.#bytes < SEGMENT_BYTES / 2 && this.#all < MOST_WITH_STATES / 2;
  }

  /** A single row is only compressed. */
  get isWorthIt(): boolean {
    return this.#rows > 1 || (!this.#isCompressed && this.#all >= LEAST_COMPRESSED);
  }

  hasRoomFor({ from, to, bytes, stateBytes }: RowSize): boolean {
    const stepBytes = this.#bytes + Number(bytes);
    return (
      from === this.#to &&
      Number(to - this.#from) <= SEGMENT_STEPS &&
      stepBytes <= SEGMENT_BYTES &&
      stepBytes + this.#stateBytes + Number(stateBytes) <= MOST_WITH_STATES
    );
  }

  add({ to, bytes, stateBytes, encoding }: RowSize): void {
    this.#to = to;
    this.#rows += 1;
    this.#bytes += Number(bytes);
    this.#stateBytes += Number(stateBytes);
    this.#isCompressed = encoding === COMPRESSED;
  }
}

async function mergedRows(engine: Engine, { tree, key }: TrajectoryRef, ranges: readonly StepRange[]) {
  const merged: Replacement[] = [];
  for (const { from, to } of ranges) {
    const replaced = await engine.db
      .selectFrom('segments')
      .selectAll()
      .where('tree', '=', tree)
      .where('trajectory', '=', key)
      .where('first_step_number', '>=', from)
      .where('first_step_number', '<', to)
      .orderBy('first_step_number')
      .execute();
    const row = replaced.length === 0 ? undefined : await mergedRow(replaced);
    if (row !== undefined) merged.push({ replaced, row });
  }
  return merged;
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
    const rows: SegmentRow[] = [];
    for (const each of merging.rows) if (await removeRows(tx, merging.ref, each)) rows.push(each.row);
    merged.push(...rows);
    if (rows.length === merging.rows.length) done.push(merging);
  }
  await tx.engine.insertRows(tx.db, SEGMENTS, merged);
  for (const { ref, mergedTo } of done) await advance(tx, ref, mergedTo);
}

/**
 * Does not wait for a writer that holds the trajectory, because that one may wait for the rows. Then a later merge looks
 * at the same rows again.
 */
async function advance(tx: Transaction, { tree, key }: TrajectoryRef, mergedTo: bigint): Promise<void> {
  const trajectory = tx.db
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where('key', '=', key)
    .where('merged_to', '<', mergedTo);
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
  { tree, key }: TrajectoryRef,
  { replaced, row }: Replacement,
): Promise<boolean> {
  const found = await tx.engine
    .lock(
      tx.db
        .selectFrom('segments')
        .select(['first_step_number', 'next_step_number', 'checksum', 'state_names'])
        .where('tree', '=', tree)
        .where('trajectory', '=', key)
        .where('first_step_number', '>=', row.first_step_number)
        .where('first_step_number', '<', row.next_step_number)
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
  await tx.db
    .deleteFrom('segments')
    .where('tree', '=', tree)
    .where('trajectory', '=', key)
    .where('first_step_number', '>=', row.first_step_number)
    .where('first_step_number', '<', row.next_step_number)
    .execute();
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
    and exists (select 1 from ${segments} as s
      where s.tree = t.tree and s.trajectory = t.key and s.first_step_number > t.merged_to))`;
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
