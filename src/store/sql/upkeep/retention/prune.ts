import { sql } from 'kysely';
import { AnabranchError } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { formatInstant, type Instant, parseInstant } from '../../../../domain/instant.ts';
import {
  markPruned,
  PRUNABLE_STEP_BYTES,
  releasedContents,
  type StepPruning,
  timeOfMark,
} from '../../../../domain/pruning.ts';
import type { Pin } from '../../../../domain/retention.ts';
import { isKept, type StateRef, type Step } from '../../../../domain/step.ts';
import { bodyOf } from '../../../../domain/step_codec/frames.ts';
import { SmallStates, writeSmallStates } from '../../../../domain/step_codec/small_states.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { SegmentCompressor } from '../../kit/compression.ts';
import type { Engine } from '../../kit/engine.ts';
import { padded } from '../../kit/kept_queries.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { type NamespaceTransaction, type Transaction, write, writeIn } from '../../kit/transaction.ts';
import { bindDigest, readDigest } from '../../kit/values.ts';
import { segmentsOver } from '../../log/read/read_stored.ts';
import { encodedStep, SegmentCursor } from '../../log/read/segment.ts';
import { withoutRuns } from '../../log/read/step_runs.ts';
import { compressedBody, compressedStates, plainBody, readStates } from '../../log/read/stored_body.ts';
import { updateSegment } from '../../log/segments.ts';
import { Unreferencing } from '../../log/states/references.ts';
import { lockTrajectory } from '../trajectory/purge_marks.ts';
import { DIGESTS } from './sizes.ts';

/**
 * S13: removes states of own steps of a trajectory. Each transaction rewrites one segment. As in a merge, the segment
 * is prepared before, and replaced only if it is still the one that was read. Writers go on meanwhile. Steps that are
 * deleted meanwhile, and damaged segments, are left out. So are steps that the rules keep by now: they are returned.
 */
export async function pruneStates(
  engine: Engine,
  namespace: string,
  ref: TrajectoryRef,
  { steps, rules }: { readonly steps: readonly StepPruning[]; readonly rules: PinRules },
): Promise<ReadonlyMap<bigint, readonly Pin[]>> {
  const kept = new Map<bigint, readonly Pin[]>();
  const time = timeOfMark(parseInstant(await write(engine, (tx) => tx.readNow())));
  let left = [...steps].sort((a, b) => (a.stepNumber < b.stepNumber ? -1 : 1));
  while (left.length > 0) {
    const first = left[0]!.stepNumber;
    const row = (await segmentsOver({ engine, db: engine.db }, ref, first, first + 1n)
      .selectAll('s')
      .executeTakeFirst()) as SegmentRow | undefined;
    if (row === undefined) return kept;
    const these = left.filter(({ stepNumber }) => stepNumber < row.next_step_number);
    // The work before the transaction runs on the serving thread, so writers wait for it, too.
    const result = await engine.transactions.giveWayAfter(async () => {
      const pruned = await prunedSegment(engine.compressor, row, these, time);
      return pruned && replace(engine, namespace, { ref, row, rules, time, pruned });
    });
    // Another transaction has changed the segment.
    if (result === 'changed') continue;
    if (result instanceof Map) {
      for (const [step, pins] of result) kept.set(step, pins);
      left = left.filter(({ stepNumber }) => !kept.has(stepNumber));
      continue;
    }
    left = left.slice(these.length);
  }
  return kept;
}

interface Pruning {
  readonly ref: TrajectoryRef;
  readonly row: SegmentRow;
  readonly pruned: PrunedSegment;
  readonly rules: PinRules;
  readonly time: Instant;
}

type Replaced = 'replaced' | 'changed' | ReadonlyMap<bigint, readonly Pin[]>;

/** Changes nothing if the segment is not the one that was read, or if steps are pinned by now, which it returns. */
function replace(engine: Engine, namespace: string, { ref, row, pruned, rules, time }: Pruning): Promise<Replaced> {
  return writeIn(engine, namespace, async (tx): Promise<Replaced> => {
    if (!(await lockRow(tx, ref, row))) return 'changed';
    const numbers = pruned.steps.map(({ stepNumber }) => stepNumber);
    const pinned = numbers.length === 0 ? NONE : await pinnedNow(tx, ref, numbers, rules);
    if (pinned.size > 0) return pinned;
    const unreferencing = new Unreferencing(tx);
    await updateSegment(tx, ref, row, pruned.columns);
    for (const some of Map.groupBy(pruned.steps, ({ names }) => JSON.stringify(names)).values()) {
      const { names } = some[0]!;
      if (names.length === 0) continue;
      const numbers = some.map(({ stepNumber }) => stepNumber);
      unreferencing.add(await deleteReferences(tx, ref, numbers, names).execute());
      await pruneAttached(tx, ref, numbers, names, time);
    }
    unreferencing.add(await deleteContentReferences(tx, ref, pruned.released));
    await unreferencing.write();
    return 'replaced';
  });
}

const NONE: ReadonlyMap<bigint, readonly Pin[]> = new Map();

/**
 * Locks the trajectory, for one short transaction, against all that locks it: deletion, branches and tags, which have
 * to be seen, and appends. A group of appends does not wait for it, but sets the trajectory aside.
 */
async function lockRow(tx: Transaction, { tree, key }: TrajectoryRef, row: SegmentRow): Promise<boolean> {
  if ((await lockTrajectory(tx, { tree, key }, 'delete')) === undefined) return false;
  const segment = tx.db
    .selectFrom('segments')
    .select(['next_step_number', 'checksum', 'state_names', 'encoding', 'body_bytes'])
    .where('tree', '=', tree)
    .where('trajectory', '=', key)
    .where('first_step_number', '=', row.first_step_number);
  const found = await tx.engine.locks.rows(segment, 'write').executeTakeFirst();
  return (
    found?.next_step_number === row.next_step_number &&
    found.checksum === row.checksum &&
    found.encoding === row.encoding &&
    found.body_bytes === row.body_bytes &&
    // Attaching a state changes only the names.
    found.state_names === row.state_names
  );
}

/** Deletes references of steps by states of these names. Contents have no name. */
function deleteReferences(tx: Transaction, ref: TrajectoryRef, numbers: readonly bigint[], names: readonly string[]) {
  return tx.db
    .deleteFrom('state_refs')
    .where('tree', '=', ref.tree)
    .where('trajectory', '=', ref.key)
    .where(tx.engine.sql.among(sql.ref('step_number'), numbers))
    .where('name', 'in', padded(names))
    .returning(['namespace', 'state']);
}

async function pruneAttached(
  tx: Transaction,
  ref: TrajectoryRef,
  numbers: readonly bigint[],
  names: readonly string[],
  time: Instant,
): Promise<void> {
  await tx.db
    .updateTable('attached_states')
    .set({ data: null, pruned_time: formatInstant(time, 6) })
    .where('tree', '=', ref.tree)
    .where('trajectory', '=', ref.key)
    .where(tx.engine.sql.among(sql.ref('step_number'), numbers))
    .where('name', 'in', padded(names))
    .where('pruned_time', 'is', null)
    .execute();
}

/** Deletes references by contents. */
async function deleteContentReferences(
  tx: NamespaceTransaction,
  ref: TrajectoryRef,
  released: PrunedSegment['released'],
): Promise<readonly { readonly namespace: string; readonly state: bigint }[]> {
  const deleted: { readonly namespace: string; readonly state: bigint }[] = [];
  const digests = [...new Set(released.flatMap((each) => each.digests))];
  for (let at = 0; at < digests.length; at += DIGESTS) {
    const states = await tx.db
      .selectFrom('states')
      .select(['key', 'digest'])
      .where('namespace', '=', tx.namespace)
      .where('digest', 'in', padded(digests.slice(at, at + DIGESTS)).map(bindDigest))
      .execute();
    for (const { key, digest } of states) {
      const named = readDigest(digest);
      const numbers = released.filter((each) => each.digests.includes(named)).map(({ stepNumber }) => stepNumber);
      deleted.push(...(await deleteReferences(tx, ref, numbers, ['']).where('state', '=', key).execute()));
    }
  }
  return deleted;
}

/** What keeps a step from being pruned. */
interface PinRules {
  readonly keepTagged: boolean;
  readonly keepBranchPoints: boolean;
}

/**
 * S14: returns which of these own steps of a trajectory are tagged, also by tags of branches (B5), or are branch
 * points. The trajectory is locked, so that no other transaction adds a tag or a branch until this one ends.
 */
async function pinnedNow(
  tx: Transaction,
  ref: TrajectoryRef,
  numbers: readonly bigint[],
  { keepTagged, keepBranchPoints }: PinRules,
): Promise<ReadonlyMap<bigint, readonly Pin[]>> {
  const pinned = new Map<bigint, readonly Pin[]>();
  const note = (steps: readonly bigint[], pin: Pin) => {
    for (const step of steps) pinned.set(step, [...(pinned.get(step) ?? []), pin]);
  };
  if (keepTagged) note(await taggedOf(tx, ref, numbers), 'TAG');
  if (keepBranchPoints) note(await branchPointsOf(tx, ref, numbers), 'BRANCH');
  return pinned;
}

/** Goes from the tags of the tree up to the owners of the steps. */
async function taggedOf({ engine, db }: Transaction, { tree, key }: TrajectoryRef, numbers: readonly bigint[]) {
  const trajectories = engine.sql.table('trajectories');
  const { rows } = await sql<{ step_number: bigint }>`with recursive up(key, parent, branch_point, step_number) as (
      select t.key, t.parent, t.branch_point, g.step_number
      from ${engine.sql.table('tags')} as g cross join ${trajectories} as t
      where g.tree = ${tree} and ${engine.sql.among(sql.ref('g.step_number'), numbers)}
        and t.tree = ${tree} and t.key = g.trajectory
      union
      select t.key, t.parent, t.branch_point, u.step_number from up as u cross join ${trajectories} as t
      where u.branch_point >= u.step_number and t.tree = ${tree} and t.key = u.parent)
    select distinct step_number from up
    where key = ${key} and (branch_point is null or branch_point < step_number)`.execute(db);
  return rows.map(({ step_number: step }) => step);
}

async function branchPointsOf({ engine, db }: Transaction, { tree, key }: TrajectoryRef, numbers: readonly bigint[]) {
  const rows = await db
    .selectFrom('trajectories')
    .select('branch_point')
    .distinct()
    .where('tree', '=', tree)
    .where('parent', '=', key)
    .where('purging', '=', 0)
    .where(engine.sql.among(sql.ref('branch_point'), numbers))
    .execute();
  return rows.flatMap(({ branch_point: step }) => step ?? []);
}

/**
 * S14: whether an own step of a trajectory has a tag. With `below`, whether one of the trajectory or of those that
 * branch off has.
 */
export async function hasTags(
  { engine, db }: Transaction,
  { tree, key }: TrajectoryRef,
  { from, below }: { readonly from: bigint; readonly below: boolean },
): Promise<boolean> {
  const branches = sql`union all select t.key from going as b cross join ${engine.sql.table('trajectories')} as t
    where t.tree = ${tree} and t.parent = b.key and not t.purging`;
  const { rows } = await sql`with recursive going(key) as (select cast(${key} as bigint) ${below ? branches : sql``})
    select 1 from going as b cross join ${engine.sql.table('tags')} as g
    where g.tree = ${tree} and g.trajectory = b.key and g.step_number >= ${from} limit 1`.execute(db);
  return rows.length > 0;
}

/** A segment to be written in place of the one that was read, and what it does not refer to any more. */
interface PrunedSegment {
  readonly columns: Pick<
    SegmentRow,
    'body' | 'encoding' | 'body_bytes' | 'checksum' | 'states' | 'states_bytes' | 'state_names'
  >;
  /** The steps that are pruned. Those that are too large are not. */
  readonly steps: readonly StepPruning[];
  /** References by contents. */
  readonly released: readonly { readonly stepNumber: bigint; readonly digests: readonly Digest[] }[];
}

/** Returns undefined if the segment is damaged: it stays as it is, and reads report the damage. */
async function prunedSegment(
  compressor: SegmentCompressor,
  row: SegmentRow,
  prunings: readonly StepPruning[],
  time: Instant,
): Promise<PrunedSegment | undefined> {
  try {
    return await rewrite(compressor, row, new Map(prunings.map((each) => [each.stepNumber, each])), time);
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'STEP_CORRUPT') return undefined;
    throw error;
  }
}

async function rewrite(
  compressor: SegmentCompressor,
  row: SegmentRow,
  prunings: ReadonlyMap<bigint, StepPruning>,
  time: Instant,
): Promise<PrunedSegment> {
  const first = row.first_step_number;
  const pruned: StepPruning[] = [];
  const steps: Uint8Array[] = [];
  const states: StateRef[] = [];
  const released: PrunedSegment['released'][number][] = [];
  const small = new SmallStates(readStates(row));
  for (const at = new SegmentCursor(row); at.next(); ) {
    const pruning = at.frameBytes > PRUNABLE_STEP_BYTES ? undefined : prunings.get(at.stepNumber);
    if (pruning !== undefined) pruned.push(pruning);
    const step: Step = at.read(pruning === undefined ? 'BASIC' : 'FULL');
    const after = pruning === undefined ? step : markPruned(step, pruning, time);
    steps.push(pruning === undefined ? at.bytes : encodedStep(after));
    for (const [i, { size }] of step.states.entries()) {
      const data = small.next(size);
      const state = after.states[i]!;
      states.push(isKept(state) ? { ...state, data } : state);
    }
    const digests = pruning === undefined ? [] : releasedContents(step, after);
    if (digests.length > 0) released.push({ stepNumber: at.stepNumber, digests });
  }
  const names = pruned.map((each) => [Number(each.stepNumber - first), each.names] as const);
  return {
    columns: { ...(await encoded(compressor, row, steps, states)), state_names: withoutRuns(row.state_names, names) },
    steps: pruned,
    released,
  };
}

/** A segment that was not merged yet stays as it is read fastest. */
async function encoded(
  compressor: SegmentCompressor,
  row: SegmentRow,
  steps: readonly Uint8Array[],
  states: readonly StateRef[],
) {
  const body = bodyOf(steps);
  const bytes = writeSmallStates(states);
  if (row.body_bytes === null) {
    return { ...plainBody(row.first_step_number, body), states: bytes, states_bytes: null };
  }
  return {
    ...(await compressedBody(compressor, row.first_step_number, body)),
    ...(await compressedStates(compressor, bytes)),
  };
}
