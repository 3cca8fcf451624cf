import { type ArchiveRecord, archiveInvalid, importConflict } from '../../../../domain/archive.ts';
import { AnabranchError } from '../../../../domain/errors.ts';
import { depthFault } from '../../../../domain/lineage.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import { byId } from '../../kit/by_id.ts';
import type { Sums } from '../../kit/running_sums.ts';
import type { NamespaceTransaction, ReadScope } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import { placeKey, sumsAt } from '../../log/append/sums_at.ts';
import { type Belonging, lockBelonging } from '../../log/trajectory/belonging.ts';

/** The stored parent of a trajectory that is imported. */
export interface ImportedParent extends TrajectoryRef {
  readonly depth: bigint;
}

/**
 * Returns the parent of a branch whose own steps begin at `begin`. Undefined if the parent was left out. `place` names
 * the branch. Errors: ARCHIVE_INVALID, BRANCH_TOO_DEEP.
 */
export async function findParent(
  scope: ReadScope,
  id: string,
  begin: bigint,
  place: string,
): Promise<ImportedParent | undefined> {
  const columns = ['id', 'tree', 'key', 'depth', 'branch_point', 'next_step_number'] as const;
  const query = byId(scope, 'trajectories', id).select(columns).where('purging', '=', 0);
  const row = await query.executeTakeFirst();
  const ownBegin = row?.branch_point == null ? 0n : row.branch_point + 1n;
  if (row === undefined || begin > row.next_step_number) return undefined;
  if (begin <= ownBegin) throw archiveInvalid(place, 'its branch point is no step of its parent');
  const fault = depthFault(row);
  if (fault !== undefined) throw fault;
  return row;
}

/** Returns the sums before step `begin` of a branch. Errors: ARCHIVE_INVALID. */
export async function sumsBefore(
  { engine, db }: ReadScope,
  { tree, key: owner }: ImportedParent,
  begin: bigint,
  place: string,
): Promise<Sums> {
  const last = { tree, owner, stepNumber: begin - 1n };
  const sums = (await sumsAt({ engine, db }, [last])).get(placeKey(last));
  if (sums === undefined) throw archiveInvalid(place, 'its branch point is not stored');
  return sums;
}

/** Locks the parent against deletion. `id` is that of the branch. Errors: IMPORT_CONFLICT. */
export async function keepParent(tx: NamespaceTransaction, { tree, key }: ImportedParent, id: string): Promise<void> {
  const query = tx.db.selectFrom('trajectories').select('purging').where('tree', '=', tree).where('key', '=', key);
  const row = await tx.engine.locks.rows(query, 'keep').executeTakeFirst();
  if (row === undefined || isSet(row.purging))
    throw importConflict(`Trajectory ${id}`, 'its parent was deleted meanwhile');
}

const NOT_STORED: ReadonlySet<string> = new Set(['RUN_NOT_FOUND', 'EXPERIMENT_NOT_FOUND', 'INVALID_REQUEST']);

/** Locks the run and the experiment of a trajectory against deletion. Errors: ARCHIVE_INVALID. */
export async function lockBelongingOf(
  tx: NamespaceTransaction,
  { run, experiment }: ArchiveRecord,
  place: string,
): Promise<Belonging> {
  try {
    return await lockBelonging(tx, textOrNone(run), textOrNone(experiment));
  } catch (error) {
    if (!(error instanceof AnabranchError) || !NOT_STORED.has(error.reason)) throw error;
    throw archiveInvalid(place, 'its run or its experiment is not stored', error);
  }
}

function textOrNone(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}
