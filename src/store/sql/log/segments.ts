import { type RawBuilder, type SqlBool, sql } from 'kysely';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import { chunksOf, padded } from '../kit/kept_queries.ts';
import { SEGMENT_NAMES, SEGMENTS, type SegmentRow } from '../kit/tables/steps.ts';
import type { RowOf } from '../kit/tables/table.ts';
import type { Transaction } from '../kit/transaction.ts';
import { indexNames, NO_RUNS } from './read/step_runs.ts';

/**
 * All writes to `segments`, and to the index of their names (states and labels), except for those of
 * `postgres/appends.ts` and `sqlite/appends.ts`. A segment is in this index, and in those of rewards and states, if
 * `body_bytes` is set: once it is merged, stored compressed, or passed by `merged_to`. So plain appends write none of
 * them. Whoever changes or deletes a segment has locked it.
 */

type NameRow = RowOf<typeof SEGMENT_NAMES>;

/** The columns that decide what the index has of a segment. */
type NamedColumns = Pick<SegmentRow, 'first_step_number' | 'state_names' | 'labels' | 'body_bytes'>;

export function insertSegments(tx: Transaction, rows: readonly SegmentRow[]): Promise<unknown> {
  const stored = tx.engine.bulk.insert(tx.db, SEGMENTS, rows);
  const names = indexedNamesOf(rows);
  return names.length === 0 ? stored : Promise.all([stored, insertNames(tx, names)]);
}

/** Returns what the index has of new segments. */
export function indexedNamesOf(rows: readonly SegmentRow[]): readonly NameRow[] {
  const names: NameRow[] = [];
  for (const row of rows) {
    if (row.body_bytes === null) continue;
    const ref = { tree: row.tree, key: row.trajectory };
    for (const name of indexedNames(row) ?? []) names.push(nameRow(ref, row, name));
  }
  return names;
}

/** Changes columns of a segment, which was `before`. */
export async function updateSegment(
  tx: Transaction,
  ref: TrajectoryRef,
  before: NamedColumns,
  columns: Partial<Omit<SegmentRow, 'tree' | 'trajectory' | 'first_step_number'>>,
): Promise<void> {
  const { first_step_number: first } = before;
  await tx.db
    .updateTable('segments')
    .set(columns)
    .where('tree', '=', ref.tree)
    .where('trajectory', '=', ref.key)
    .where('first_step_number', '=', first)
    .execute();
  const [was, is] = [indexedNames(before) ?? NO_NAMES, indexedNames({ ...before, ...columns }) ?? NO_NAMES];
  const removed = [...was].filter((name) => !is.has(name));
  const added = [...is].flatMap((name) => (was.has(name) ? [] : [nameRow(ref, before, name)]));
  await deleteNames(tx, ref, { from: first, to: first + 1n }, removed);
  await insertNames(tx, added);
}

/** Deletes all segments of trajectories of a tree. */
export async function deleteAllSegments(tx: Transaction, tree: bigint, keys: readonly bigint[]): Promise<void> {
  for (const table of ['segments', 'segment_names'] as const) {
    await tx.db
      .deleteFrom<'segments' | 'segment_names'>(table)
      .where('tree', '=', tree)
      .where(tx.engine.sql.among(sql.ref('trajectory'), keys))
      .execute();
  }
}

/**
 * Columns of which at least one differs after any change of a segment: attaching a state changes only the names, and
 * compressing a segment only the length of its body.
 */
const VERSION = ['first_step_number', 'next_step_number', 'checksum', 'state_names', 'body_bytes'] as const;

export type SegmentVersion = Pick<SegmentRow, (typeof VERSION)[number]>;

/** Whether these are the same segments, in any order. */
export function sameSegments(some: readonly SegmentVersion[], others: readonly SegmentVersion[]): boolean {
  const found = new Map(others.map((row) => [row.first_step_number, row]));
  return (
    found.size === some.length &&
    some.every((row) => VERSION.every((name) => row[name] === found.get(row.first_step_number)?.[name]))
  );
}

/** Returns the segments of a trajectory that begin in a range, in any order. */
export function readVersions(tx: Transaction, ref: TrajectoryRef, range: Range): Promise<SegmentVersion[]> {
  return tx.db.selectFrom('segments').select(VERSION).where(beginsIn(ref, range)).execute();
}

/** Deletes the segments of a trajectory that begin in a range. Returns them in any order. */
export async function deleteSegments(tx: Transaction, ref: TrajectoryRef, range: Range): Promise<SegmentVersion[]> {
  const deleted = await tx.db
    .deleteFrom('segments')
    .where(beginsIn(ref, range))
    .returning([...VERSION, 'labels'])
    .execute();
  const names = deleted.map(indexedNames);
  const all = names.includes(undefined) ? undefined : [...new Set(names.flatMap((each) => [...each!]))];
  await deleteNames(tx, ref, range, all);
  return deleted;
}

/**
 * Adds the segments that begin in a range and are not in the index, because they stay as they are. Returns false if it
 * lacks some of them, for which it would have to wait.
 */
export async function indexSegments(tx: Transaction, ref: TrajectoryRef, range: Range): Promise<boolean> {
  const missing = tx.db
    .selectFrom('segments')
    .select(['first_step_number', 'state_names', 'labels', sql<bigint>`octet_length(body)`.as('body_bytes')])
    .where(beginsIn(ref, range))
    .where('body_bytes', 'is', null);
  for (const row of await tx.engine.locks.freeRows(missing, 'write').execute()) {
    await updateSegment(tx, ref, { ...row, body_bytes: null }, { body_bytes: row.body_bytes });
  }
  return (await missing.limit(1).executeTakeFirst()) === undefined;
}

/** Segments that begin in [from, to). Without `to`: all from there on. */
interface Range {
  readonly from: bigint;
  readonly to?: bigint;
}

function beginsIn({ tree, key }: TrajectoryRef, { from, to }: Range): RawBuilder<SqlBool> {
  const first = sql.ref('first_step_number');
  const end = to === undefined ? sql`` : sql`and ${first} < ${to}`;
  return sql<SqlBool>`tree = ${tree} and trajectory = ${key} and ${first} >= ${from} ${end}`;
}

const NO_NAMES: ReadonlySet<string> = new Set();

/** Returns the names that the index has of a segment. Undefined if they cannot be read. */
function indexedNames({ state_names, labels, body_bytes }: Omit<NamedColumns, 'first_step_number'>) {
  if (body_bytes === null || (state_names === NO_RUNS && labels === NO_RUNS)) return NO_NAMES;
  try {
    return indexNames({ state_names, labels });
  } catch {
    return undefined;
  }
}

function nameRow({ tree, key }: TrajectoryRef, { first_step_number }: NamedColumns, name: string): NameRow {
  return { tree, trajectory: key, name, first_step_number };
}

function insertNames(tx: Transaction, names: readonly NameRow[]): Promise<void> {
  return tx.engine.bulk.insert(tx.db, SEGMENT_NAMES, names);
}

/** Undefined names are all names: damage prevents no deletion. */
async function deleteNames(
  tx: Transaction,
  ref: TrajectoryRef,
  range: Range,
  names: readonly string[] | undefined,
): Promise<void> {
  const deleting = tx.db.deleteFrom('segment_names').where(beginsIn(ref, range));
  if (names === undefined) await deleting.execute();
  for (const some of chunksOf(names ?? [])) await deleting.where('name', 'in', padded(some)).execute();
}
