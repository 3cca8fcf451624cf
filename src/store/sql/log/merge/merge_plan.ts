import { type SqlBool, sql } from 'kysely';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { MergeRequest } from '../../../contract/append.ts';
import { SEGMENT_BYTES, SEGMENT_STEPS } from '../../../contract/append.ts';
import type { Engine } from '../../kit/engine.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { isSet } from '../../kit/values.ts';
import { isLargeEnough } from '../append/segment_room.ts';
import { BODY_BYTES, bytesOf, COMPRESSED, STATES_BYTES } from '../read/stored_body.ts';
import { trajectoryTable } from '../trajectory/range_table.ts';
import type { RecentSegments } from './recent_segments.ts';

/**
 * Bounds of the segments of one trajectory that a call looks at and replaces. A call leaves the other trajectories for
 * the next one when it has reached a bound: on SQLite nothing else is committed during its transaction.
 */
export const MOST_SEGMENTS = 256;
export const MOST_BYTES = 1024 * 1024;

/** Bytes of the steps of a merged segment with their small states. */
const MOST_WITH_STATES = 128 * 1024;

/** Segments with fewer bytes stay as they are, unless they are merged with others. */
const LEAST_COMPRESSED = 512;

export interface StepRange {
  readonly from: bigint;
  readonly to: bigint;
}

export interface PlannedRange extends StepRange {
  /** Whether states were attached to steps of the range. */
  readonly hasAttached: boolean;
}

export interface Plan {
  readonly ranges: readonly PlannedRange[];
  readonly mergedFrom: bigint;
  readonly mergedTo: bigint;
  /** Whether the index of names lacks segments that stay as they are. */
  readonly leavesUnindexed: boolean;
  readonly bytes: number;
  /** Whether the trajectory has more segments than the plan looked at. */
  readonly goesOn: boolean;
  /** All segments of the plan, if they are kept in memory. */
  readonly kept: readonly SegmentRow[] | undefined;
  /** Those of `kept` that stay as they are. */
  readonly passed: readonly SegmentRow[];
}

/** What a plan needs of the row of a trajectory. */
export interface UnmergedHead {
  readonly mergedTo: bigint;
  readonly nextStepNumber: bigint;
  /** Whether states were attached to steps that are not merged. */
  readonly hasAttached: boolean;
}

type HeadRow = [key: number, mergedTo: number, nextStepNumber: number, attached: boolean | number];

/** Returns the heads of trajectories that are not being deleted, by key. */
export async function readHeads(
  engine: Engine,
  refs: readonly TrajectoryRef[],
): Promise<ReadonlyMap<bigint, UnmergedHead>> {
  const rows = await engine.reads.rows<HeadRow>(sql`
    with ${trajectoryTable(engine, refs)}
    select t.key, t.merged_to, t.next_step_number, ${hasAttached(engine)}
    from g cross join ${engine.sql.table('trajectories')} as t
    where t.tree = g.tree and t.key = g.key and t.purging = ${0}`);
  return new Map(
    rows.map(([key, mergedTo, nextStepNumber, attached]) => [
      BigInt(key),
      { mergedTo: BigInt(mergedTo), nextStepNumber: BigInt(nextStepNumber), hasAttached: isSet(attached) },
    ]),
  );
}

/**
 * Plans a merge of segments that are kept in memory (`recent`), else of stored ones. Returns undefined if there is
 * nothing to do.
 */
export async function planMerge(
  engine: Engine,
  { ref, rest }: MergeRequest,
  head: UnmergedHead,
  recent: RecentSegments,
): Promise<Plan | undefined> {
  const { mergedTo: mergedFrom, nextStepNumber } = head;
  if (mergedFrom >= nextStepNumber) return undefined;
  const kept = head.hasAttached ? [] : recent.from(ref.key, mergedFrom).slice(0, MOST_SEGMENTS);
  const isKept =
    kept.length === MOST_SEGMENTS || (kept.length > 0 && (!rest || kept.at(-1)!.next_step_number >= nextStepNumber));
  const segments = isKept ? kept.map(sizeOf) : await readSizes(engine, ref, mergedFrom);
  const attached = head.hasAttached ? await attachedBytes(engine, ref, segments) : NOTHING_ATTACHED;
  const ranges: PlannedRange[] = [];
  let mergedTo = mergedFrom;
  let bytes = 0;
  let leavesUnindexed = false;
  const passed: SegmentRow[] = [];
  let open: OpenRange | undefined;
  const planned = (goesOn: boolean): Plan => {
    return { ranges, mergedFrom, mergedTo, leavesUnindexed, bytes, kept: isKept ? kept : undefined, passed, goesOn };
  };
  const close = (range: OpenRange) => {
    if (!range.isWorthIt) {
      leavesUnindexed ||= !range.isIndexed;
      if (isKept) passed.push(...segmentsIn(kept, range.range));
      return;
    }
    ranges.push(range.range);
    bytes += range.bytes;
  };
  for (const segment of segments) {
    const sized = { ...segment, attachedBytes: attached.get(segment.from) };
    if (open !== undefined && !open.hasRoomFor(sized)) {
      close(open);
      mergedTo = open.range.to;
      open = undefined;
    }
    if (bytes >= MOST_BYTES) return planned(true);
    open ??= new OpenRange(segment.from);
    open.add(sized);
  }
  const goesOn = segments.length === MOST_SEGMENTS;
  if (open !== undefined && (open.isFull || (rest && !goesOn))) {
    close(open);
    // A segment with room for more steps is merged again with those that follow.
    mergedTo = open.isSmall ? open.range.from : open.range.to;
  }
  if (ranges.length === 0 && mergedTo === mergedFrom) return undefined;
  return planned(goesOn);
}

/** Returns the segments that begin in a range. */
export function segmentsIn(segments: readonly SegmentRow[], { from, to }: StepRange): SegmentRow[] {
  return segments.filter(({ first_step_number: first }) => from <= first && first < to);
}

/** Reads the sizes of the first segments from a number on. */
function readSizes(engine: Engine, { tree, key }: TrajectoryRef, from: bigint) {
  return engine.db
    .selectFrom('segments as s')
    .select(['s.first_step_number as from', 's.next_step_number as to', 's.encoding', 's.body_bytes'])
    .select([BODY_BYTES.as('bytes'), STATES_BYTES.as('stateBytes')])
    .where('s.tree', '=', tree)
    .where('s.trajectory', '=', key)
    .where('s.first_step_number', '>=', from)
    .orderBy('s.first_step_number')
    .limit(MOST_SEGMENTS)
    .execute();
}

/** Whether states were attached to steps that are not merged, of a trajectory `t`. */
export function hasAttached(engine: Engine) {
  return sql<boolean | bigint>`exists (select 1 from ${engine.sql.table('attached_states')} as a
    where a.tree = t.tree and a.trajectory = t.key and a.step_number >= t.merged_to)`;
}

/** Returns the bytes of the states that were attached to steps of these segments, by the first step of the segment. */
async function attachedBytes(
  engine: Engine,
  { tree, key }: TrajectoryRef,
  segments: readonly StepRange[],
): Promise<ReadonlyMap<bigint, number>> {
  const [first, last] = [segments[0], segments.at(-1)];
  const found = new Map<bigint, number>();
  if (first === undefined || last === undefined) return found;
  const attached = await engine.db
    .selectFrom('attached_states')
    .select(['step_number', sql<bigint>`coalesce(octet_length(data), 0)`.as('bytes')])
    .where('tree', '=', tree)
    .where('trajectory', '=', key)
    .where('step_number', '>=', first.from)
    .where('step_number', '<', last.to)
    .orderBy('step_number')
    .execute();
  let at = 0;
  for (const { step_number, bytes } of attached) {
    while (segments[at]!.to <= step_number) at += 1;
    const { from } = segments[at]!;
    found.set(from, (found.get(from) ?? 0) + Number(bytes));
  }
  return found;
}

const NOTHING_ATTACHED: ReadonlyMap<bigint, number> = new Map();

/** Whether a merge compresses the segment `s` if it is alone. */
export const IS_WORTH_COMPRESSING = sql<SqlBool>`s.body_bytes is null
  and octet_length(s.body) + ${STATES_BYTES} >= ${sql.lit(LEAST_COMPRESSED)}`;

interface StoredSize extends StepRange {
  readonly encoding: bigint;
  /** Null if the index of names lacks the segment. */
  readonly body_bytes: bigint | null;
  /** Bytes of the steps of the segment, not compressed. */
  readonly bytes: bigint;
  /** Bytes of the small states of these steps, not compressed. */
  readonly stateBytes: bigint;
}

function sizeOf(row: SegmentRow): StoredSize {
  const { first_step_number: from, next_step_number: to, encoding, body_bytes, states, states_bytes } = row;
  const stateBytes = states_bytes ?? BigInt(states.length);
  return { from, to, encoding, body_bytes, bytes: BigInt(bytesOf(row)), stateBytes };
}

interface SegmentSize extends StoredSize {
  /** Bytes of the states that were attached to these steps. Undefined if there are none. */
  readonly attachedBytes: number | undefined;
}

/** Whether the segment is not joined with others any more: it would have to be decompressed. */
function isDone({ from, to, encoding, bytes, stateBytes }: SegmentSize): boolean {
  return encoding === COMPRESSED && isLargeEnough(Number(to - from), Number(bytes + stateBytes));
}

/** Consecutive segments that become one. */
class OpenRange {
  readonly #from: bigint;
  #to: bigint;
  #segments = 0;
  #bytes = 0;
  #stateBytes = 0;
  #isCompressed = false;
  #isDone = false;
  #isIndexed = true;
  #hasAttached = false;

  constructor(from: bigint) {
    this.#from = from;
    this.#to = from;
  }

  get range(): PlannedRange {
    return { from: this.#from, to: this.#to, hasAttached: this.#hasAttached };
  }

  /** Bytes of the steps of these segments, with their small states. */
  get bytes(): number {
    return this.#bytes + this.#stateBytes;
  }

  get isIndexed(): boolean {
    return this.#isIndexed;
  }

  get #steps(): number {
    return Number(this.#to - this.#from);
  }

  get isFull(): boolean {
    return this.#steps >= SEGMENT_STEPS || this.#bytes >= SEGMENT_BYTES || this.bytes >= MOST_WITH_STATES;
  }

  /** Whether the merged segment is joined with those that follow. */
  get isSmall(): boolean {
    return !isLargeEnough(this.#steps, this.bytes);
  }

  /** A single segment is only compressed, or gets the states that were attached. */
  get isWorthIt(): boolean {
    return this.#segments > 1 || this.#hasAttached || (!this.#isCompressed && this.bytes >= LEAST_COMPRESSED);
  }

  hasRoomFor(segment: SegmentSize): boolean {
    const { from, to, bytes, stateBytes, attachedBytes = 0 } = segment;
    if (this.#isDone || isDone(segment)) return false;
    const stepBytes = this.#bytes + Number(bytes);
    return (
      from === this.#to &&
      Number(to - this.#from) <= SEGMENT_STEPS &&
      stepBytes <= SEGMENT_BYTES &&
      stepBytes + this.#stateBytes + Number(stateBytes) + attachedBytes <= MOST_WITH_STATES
    );
  }

  add(segment: SegmentSize): void {
    const { to, bytes, stateBytes, attachedBytes, encoding, body_bytes } = segment;
    this.#isDone = isDone(segment);
    this.#to = to;
    this.#segments += 1;
    this.#bytes += Number(bytes);
    this.#stateBytes += Number(stateBytes) + (attachedBytes ?? 0);
    this.#isCompressed = encoding === COMPRESSED;
    this.#isIndexed &&= body_bytes !== null;
    this.#hasAttached ||= attachedBytes !== undefined;
  }
}
