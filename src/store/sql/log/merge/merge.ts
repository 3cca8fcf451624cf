import { type SqlBool, sql } from 'kysely';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { MergeRequest } from '../../../contract/append.ts';
import type { Engine } from '../../kit/engine.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { type Transaction, write } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import { inLockOrder } from '../append/heads.ts';
import { deleteSegments, indexSegments, insertSegments } from '../segments.ts';
import { type Attachment, deleteAttachments, readAttachments, sameAttachments } from '../states/attached.ts';
import { foldedSegments } from './folded_segments.ts';
import {
  hasAttached,
  IS_WORTH_COMPRESSING,
  MOST_BYTES,
  MOST_SEGMENTS,
  type Plan,
  type PlannedRange,
  planMerge,
  type StepRange,
} from './merge_plan.ts';
import { mergedSegment } from './merged_segment.ts';

/**
 * Merges segments, in one transaction. Everything is prepared before it: under its locks, it checks that the segments
 * are still those that were read. Returns the requests that it did not finish.
 */
export async function mergeSteps(engine: Engine, requests: readonly MergeRequest[]): Promise<MergeRequest[]> {
  const left: MergeRequest[] = [];
  const prepared: PreparedMerge[] = [];
  let bytes = 0;
  let segments = 0;
  for (const request of requests) {
    if (bytes >= MOST_BYTES || segments >= MOST_SEGMENTS) {
      left.push(request);
      continue;
    }
    const plan = await planMerge(engine, request);
    if (plan === undefined) continue;
    bytes += plan.bytes;
    if (plan.goesOn) left.push(afterPlan(request, plan));
    const merging = await prepare(engine, request.ref, plan);
    for (const { replaced } of merging.replacements) segments += replaced.length;
    prepared.push(merging);
  }
  if (prepared.length > 0) {
    prepared.sort((a, b) => inLockOrder(a.ref, b.ref));
    await write(engine, (tx) => replaceSegments(tx, prepared));
  }
  return left;
}

function afterPlan(request: MergeRequest, { mergedFrom, mergedTo }: Plan): MergeRequest {
  const { steps } = request;
  return steps === undefined ? request : { ...request, steps: Math.max(0, steps - Number(mergedTo - mergedFrom)) };
}

/** Segments that are prepared at once: each waits for a read and for compression, which have threads of their own. */
const TOGETHER = 4;

/** What is merged of a trajectory. */
interface PreparedMerge {
  readonly ref: TrajectoryRef;
  readonly mergedFrom: bigint;
  readonly mergedTo: bigint;
  readonly leavesUnindexed: boolean;
  readonly replacements: readonly Replacement[];
}

interface Replacement extends StepRange {
  readonly replaced: readonly Pick<SegmentRow, 'first_step_number' | 'next_step_number' | 'checksum' | 'state_names'>[];
  /** States that were attached to these steps, if some are folded into the segments. */
  readonly attached: readonly Attachment[];
  readonly folded: readonly Attachment[];
  readonly segments: readonly SegmentRow[];
}

async function prepare(engine: Engine, ref: TrajectoryRef, plan: Plan): Promise<PreparedMerge> {
  const replacements: Replacement[] = [];
  for (let i = 0; i < plan.ranges.length; i += TOGETHER) {
    const some = plan.ranges.slice(i, i + TOGETHER).map((range) => replacementsOf(engine, ref, range));
    replacements.push(...(await Promise.all(some)).flat());
  }
  const last = replacements.at(-1);
  // States that stay in rows of `attached_states` would be found again and again.
  const isLeft = last !== undefined && last.from === plan.mergedTo && last.folded.length < last.attached.length;
  // A damaged segment stays as it is.
  const leavesUnindexed = plan.leavesUnindexed || replacements.length < plan.ranges.length;
  return { ref, ...plan, mergedTo: isLeft ? last.to : plan.mergedTo, leavesUnindexed, replacements };
}

/** Returns nothing if a segment is damaged. */
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
    const merged = await mergedSegment(engine.compressor, replaced);
    return merged === undefined ? [] : [{ from, to, replaced, attached: [], folded: [], segments: [merged] }];
  }
  const attached = await readAttachments(engine.db, ref, { from, to });
  const folded = await foldedSegments(engine.compressor, replaced, attached);
  return folded === undefined ? [] : [{ from, to, replaced, attached, ...folded }];
}

/** Locks the trajectories against deletion, but not against appends. */
async function replaceSegments(tx: Transaction, prepared: readonly PreparedMerge[]): Promise<void> {
  const merged: SegmentRow[] = [];
  const done: PreparedMerge[] = [];
  for (const merging of prepared) {
    const { tree, key } = merging.ref;
    const trajectory = tx.db
      .selectFrom('trajectories')
      .select('key')
      .where('tree', '=', tree)
      .where('key', '=', key)
      .where('purging', '=', 0);
    if ((await tx.engine.locks.rows(trajectory, 'keep').executeTakeFirst()) === undefined) continue;
    let isDone = true;
    for (const each of merging.replacements) {
      if (await removeReplaced(tx, merging.ref, each)) merged.push(...each.segments);
      else isDone = false;
    }
    if (isDone) done.push(merging);
  }
  await insertSegments(tx, merged);
  for (const merging of done) await advance(tx, merging);
}

/**
 * Does not wait for a writer that holds the trajectory, because that one may wait for the segments. Then a later merge
 * looks at the same segments again, as it does if a state was attached to an earlier segment meanwhile.
 */
async function advance(tx: Transaction, merging: PreparedMerge): Promise<void> {
  const { ref, mergedFrom, mergedTo, leavesUnindexed } = merging;
  if (leavesUnindexed && !(await indexSegments(tx, ref, { from: mergedFrom, to: mergedTo }))) return;
  const ofTrajectory = { tree: ref.tree, key: ref.key, merged_to: mergedFrom };
  const trajectory = tx.db
    .selectFrom('trajectories')
    .select('key')
    .where((row) => row.and(ofTrajectory));
  if ((await tx.engine.locks.freeRows(trajectory, 'write').executeTakeFirst()) === undefined) return;
  await tx.db
    .updateTable('trajectories')
    .set({
      merged_to: mergedTo,
      named_to: sql<bigint>`(case when named_to < ${mergedTo} then ${mergedTo} else named_to end)`,
    })
    .where((row) => row.and(ofTrajectory))
    .execute();
}

/** Returns false, and removes nothing, if the segments are not those that were read. */
async function removeReplaced(
  tx: Transaction,
  ref: TrajectoryRef,
  { from, to, replaced, attached, folded }: Replacement,
): Promise<boolean> {
  const { tree, key } = ref;
  const found = await tx.engine.locks
    .rows(
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
  await deleteSegments(tx, ref, { from, to });
  await deleteAttachments(tx, ref, folded);
  return true;
}

export async function findUnmerged(
  engine: Engine,
  after: TrajectoryRef | undefined,
  limit: number,
  idleSeconds: number,
) {
  const segments = engine.sql.table('segments');
  // A single segment is only compressed. `merged_to` is its first step, if it has room for more.
  const unmerged = sql<boolean | bigint>`(not t.purging and t.update_time < ${engine.sql.hoursAgo(idleSeconds / 3600)}
    and t.merged_to < t.next_step_number
    and (exists (select 1 from ${segments} as s
        where s.tree = t.tree and s.trajectory = t.key and s.first_step_number >= t.merged_to
          and (s.first_step_number > t.merged_to or ${IS_WORTH_COMPRESSING}))
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
