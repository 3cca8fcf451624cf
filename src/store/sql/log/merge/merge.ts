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
import { foldedRows } from './folded_segments.ts';
import {
  hasAttached,
  IS_WORTH_COMPRESSING,
  MOST_BYTES,
  MOST_ROWS,
  type Plan,
  type PlannedRange,
  planMerge,
  type StepRange,
} from './merge_plan.ts';
import { mergedRow } from './merged_segment.ts';

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
    if (plan.goesOn) left.push(afterPlan(request, plan));
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

function afterPlan(request: MergeRequest, { mergedFrom, mergedTo }: Plan): MergeRequest {
  const { steps } = request;
  return steps === undefined ? request : { ...request, steps: Math.max(0, steps - Number(mergedTo - mergedFrom)) };
}

/** Rows that are prepared at once: each waits for a read and for compression, which have threads of their own. */
const TOGETHER = 4;

/** What is merged of a trajectory. */
interface Merging {
  readonly ref: TrajectoryRef;
  readonly mergedFrom: bigint;
  readonly mergedTo: bigint;
  readonly leavesUnindexed: boolean;
  readonly rows: readonly Replacement[];
}

interface Replacement extends StepRange {
  readonly replaced: readonly Pick<SegmentRow, 'first_step_number' | 'next_step_number' | 'checksum' | 'state_names'>[];
  /** States that were attached to these steps, if some are folded into the rows. */
  readonly attached: readonly Attachment[];
  readonly folded: readonly Attachment[];
  readonly rows: readonly SegmentRow[];
}

async function prepare(engine: Engine, ref: TrajectoryRef, plan: Plan): Promise<Merging> {
  const rows: Replacement[] = [];
  for (let i = 0; i < plan.ranges.length; i += TOGETHER) {
    const some = plan.ranges.slice(i, i + TOGETHER).map((range) => replacementsOf(engine, ref, range));
    rows.push(...(await Promise.all(some)).flat());
  }
  const last = rows.at(-1);
  // States that stay in rows of their own would be found again and again.
  const isLeft = last !== undefined && last.from === plan.mergedTo && last.folded.length < last.attached.length;
  // A damaged row stays as it is.
  const leavesUnindexed = plan.leavesUnindexed || rows.length < plan.ranges.length;
  return { ref, ...plan, mergedTo: isLeft ? last.to : plan.mergedTo, leavesUnindexed, rows };
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
    const row = await mergedRow(engine.compressor, replaced);
    return row === undefined ? [] : [{ from, to, replaced, attached: [], folded: [], rows: [row] }];
  }
  const attached = await readAttachments(engine.db, ref, { from, to });
  const folded = await foldedRows(engine.compressor, replaced, attached);
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
    if ((await tx.engine.locks.rows(trajectory, 'keep').executeTakeFirst()) === undefined) continue;
    let isDone = true;
    for (const each of merging.rows) {
      if (await removeRows(tx, merging.ref, each)) merged.push(...each.rows);
      else isDone = false;
    }
    if (isDone) done.push(merging);
  }
  await insertSegments(tx, merged);
  for (const merging of done) await advance(tx, merging);
}

/**
 * Does not wait for a writer that holds the trajectory, because that one may wait for the rows. Then a later merge
 * looks at the same rows again, as it does if a state was attached to an earlier row meanwhile.
 */
async function advance(tx: Transaction, merging: Merging): Promise<void> {
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

/** Returns false, and removes nothing, if the rows are not those that were read. */
async function removeRows(
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
  // A single row is only compressed. `merged_to` is its first step, if it has room for more.
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
