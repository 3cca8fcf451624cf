import { type SqlBool, sql } from 'kysely';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { MergeRequest } from '../../../contract/append.ts';
import type { Engine } from '../../kit/engine.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { rowUpdate } from '../../kit/tables/table.ts';
import { TRAJECTORIES } from '../../kit/tables/trajectories.ts';
import { inOneRoundTrip, type Transaction, write } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import { inLockOrder } from '../append/heads.ts';
import { deleteSegments, indexSegments, insertSegments, readVersions, sameSegments } from '../segments.ts';
import { type Attachment, deleteAttachments, readAttachments, sameAttachments } from '../states/attached.ts';
import { trajectoryTable } from '../trajectory/range_table.ts';
import { foldedSegments } from './folded_segments.ts';
import {
  hasAttached,
  IS_WORTH_COMPRESSING,
  MOST_BYTES,
  MOST_SEGMENTS,
  type Plan,
  type PlannedRange,
  planMerge,
  readHeads,
  type StepRange,
  segmentsIn,
} from './merge_plan.ts';
import { mergedSegment } from './merged_segment.ts';
import type { RecentSegments } from './recent_segments.ts';

/**
 * Merges segments, in one transaction, for which everything is prepared before. Returns the requests that it did not
 * finish.
 */
export async function mergeSteps(
  engine: Engine,
  recent: RecentSegments,
  requests: readonly MergeRequest[],
): Promise<MergeRequest[]> {
  if (requests.length === 0) return [];
  // The second attempt reads the segments of which the first one had others in memory.
  const attempt = () => mergeOnce(engine, recent, requests);
  return (await attempt()) ?? (await attempt()) ?? [...requests];
}

/** Returns undefined, and merges nothing, if a segment is no longer as it was read, or as it is kept in memory. */
async function mergeOnce(
  engine: Engine,
  recent: RecentSegments,
  requests: readonly MergeRequest[],
): Promise<MergeRequest[] | undefined> {
  const left: MergeRequest[] = [];
  const prepared: PreparedMerge[] = [];
  let bytes = 0;
  let segments = 0;
  const refs = requests.map(({ ref }) => ref);
  const heads = await readHeads(engine, refs);
  for (const request of requests) {
    if (bytes >= MOST_BYTES || segments >= MOST_SEGMENTS) {
      left.push(request);
      continue;
    }
    const { ref } = request;
    const head = heads.get(ref.key);
    const plan = head && (await planMerge(engine, request, head, recent));
    // A trajectory that does not grow needs no memory.
    if (head === undefined || request.rest) recent.forget(ref.key);
    if (plan === undefined) continue;
    bytes += plan.bytes;
    if (plan.goesOn) left.push(afterPlan(request, plan));
    const merging = await prepare(engine, ref, plan);
    for (const { replaced } of merging.replacements) segments += replaced.length;
    prepared.push(merging);
  }
  if (prepared.length === 0) return left;
  prepared.sort((a, b) => inLockOrder(a.ref, b.ref));
  try {
    const advanced = await write(engine, (tx) => replaceSegments(tx, prepared), { lasting: false });
    for (const { ref, mergedFrom, mergedTo, replacements } of prepared) {
      const merged = replacements.flatMap((each) => each.segments);
      recent.replace(ref.key, merged, advanced.has(ref.key) ? mergedTo : mergedFrom);
    }
    return left;
  } catch (error) {
    for (const { ref } of prepared) recent.forget(ref.key);
    if (!(error instanceof SegmentsChanged)) throw error;
    return undefined;
  }
}

/** A segment was changed or merged after it was read, or since it is kept in memory. */
class SegmentsChanged extends Error {}

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
  readonly passed: readonly SegmentRow[];
}

interface Replacement extends StepRange {
  readonly replaced: readonly SegmentRow[];
  /** States that were attached to these steps, if some are folded into the segments. */
  readonly attached: readonly Attachment[];
  readonly folded: readonly Attachment[];
  readonly segments: readonly SegmentRow[];
}

async function prepare(engine: Engine, ref: TrajectoryRef, plan: Plan): Promise<PreparedMerge> {
  const replacements: Replacement[] = [];
  for (let i = 0; i < plan.ranges.length; i += TOGETHER) {
    const some = plan.ranges.slice(i, i + TOGETHER).map((range) => replacementsOf(engine, ref, range, plan.kept));
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
  range: PlannedRange,
  kept: readonly SegmentRow[] | undefined,
): Promise<Replacement[]> {
  const { from, to, hasAttached } = range;
  const replaced = kept === undefined ? await readSegments(engine, ref, range) : segmentsIn(kept, range);
  if (replaced.length === 0) return [];
  if (!hasAttached) {
    const merged = await mergedSegment(engine.compressor, replaced);
    return merged === undefined ? [] : [{ from, to, replaced, attached: [], folded: [], segments: [merged] }];
  }
  const attached = await readAttachments(engine.db, ref, { from, to });
  const folded = await foldedSegments(engine.compressor, replaced, attached);
  return folded === undefined ? [] : [{ from, to, replaced, attached, ...folded }];
}

function readSegments({ db }: Engine, { tree, key }: TrajectoryRef, { from, to }: StepRange): Promise<SegmentRow[]> {
  return db
    .selectFrom('segments')
    .selectAll()
    .where('tree', '=', tree)
    .where('trajectory', '=', key)
    .where('first_step_number', '>=', from)
    .where('first_step_number', '<', to)
    .orderBy('first_step_number')
    .execute();
}

/**
 * Locks the trajectories against deletion, but not against appends. Returns the keys of those whose `merged_to` it has
 * moved. Errors: SegmentsChanged.
 */
async function replaceSegments(tx: Transaction, prepared: readonly PreparedMerge[]): Promise<ReadonlySet<bigint>> {
  const kept = await tx.engine.locks.rows(selectHeads(tx, prepared).where('purging', '=', 0), 'keep').execute();
  const keys = new Set(kept.map(({ key }) => key));
  const merging = prepared.filter(({ ref }) => keys.has(ref.key));
  if (merging.length === 0) return keys;
  const replacements = merging.flatMap(({ ref, replacements }) => replacements.map((each) => ({ ref, ...each })));
  await inOneRoundTrip([
    ...replacements.map((each) => removeReplaced(tx, each.ref, each)),
    ...merging.map(({ ref, passed }) => requireStored(tx, ref, passed)),
  ]);
  await insertSegments(
    tx,
    replacements.flatMap((each) => each.segments),
  );
  return advance(tx, merging);
}

function selectHeads({ db, engine }: Transaction, prepared: readonly PreparedMerge[]) {
  const refs = prepared.map(({ ref }) => ref);
  return db
    .selectFrom('trajectories')
    .select(['tree', 'key', 'merged_to', 'indexed_to'])
    .where(sql<SqlBool>`(tree, key) in (with ${trajectoryTable(engine, refs)} select tree, key from g)`)
    .orderBy('tree')
    .orderBy('key');
}

const MERGED_UPDATE = rowUpdate(TRAJECTORIES, ['tree', 'key'], ['merged_to', 'indexed_to']);

/**
 * Does not wait for a writer that holds a trajectory, because that one may wait for the segments. Then a later merge
 * looks at the same segments again, as it does if a state was attached to an earlier segment meanwhile.
 */
async function advance(tx: Transaction, merging: readonly PreparedMerge[]): Promise<ReadonlySet<bigint>> {
  const indexed = new Map<bigint, PreparedMerge>();
  for (const each of merging) {
    const { ref, mergedFrom: from, mergedTo: to, leavesUnindexed } = each;
    if (!leavesUnindexed || (await indexSegments(tx, ref, { from, to }))) indexed.set(ref.key, each);
  }
  const free = await tx.engine.locks.freeRows(selectHeads(tx, merging), 'write').execute();
  const moved = free.flatMap(({ tree, key, merged_to, indexed_to }) => {
    const { mergedFrom, mergedTo } = indexed.get(key) ?? {};
    if (mergedTo === undefined || merged_to !== mergedFrom) return [];
    return [{ tree, key, merged_to: mergedTo, indexed_to: indexed_to < mergedTo ? mergedTo : indexed_to }];
  });
  await tx.engine.bulk.update(tx.db, MERGED_UPDATE, moved);
  return new Set(moved.map(({ key }) => key));
}

/** Errors: SegmentsChanged, if the segments are not those that were read. */
async function removeReplaced(
  tx: Transaction,
  ref: TrajectoryRef,
  { from, to, replaced, attached, folded }: Replacement,
): Promise<void> {
  if (!sameSegments(await deleteSegments(tx, ref, { from, to }), replaced)) throw new SegmentsChanged();
  if (attached.length === 0) return;
  if (!sameAttachments(await readAttachments(tx.db, ref, { from, to }), attached)) throw new SegmentsChanged();
  await deleteAttachments(tx, ref, folded);
}

/**
 * A merge that a crash of the database has undone is still in memory: what a plan passes over is compared too. Errors:
 * SegmentsChanged.
 */
async function requireStored(tx: Transaction, ref: TrajectoryRef, passed: readonly SegmentRow[]): Promise<void> {
  const [first, last] = [passed[0], passed.at(-1)];
  if (first === undefined || last === undefined) return;
  const begins = new Set(passed.map((row) => row.first_step_number));
  const stored = await readVersions(tx, ref, { from: first.first_step_number, to: last.next_step_number });
  const found = stored.filter((row) => begins.has(row.first_step_number));
  if (!sameSegments(found, passed)) throw new SegmentsChanged();
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
