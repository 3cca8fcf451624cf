import { sql } from 'kysely';
import type { AnabranchError } from '../../../../domain/errors.ts';
import { depthFault } from '../../../../domain/lineage.ts';
import type { StartPoint } from '../../../../domain/rollout.ts';
import { ownBegin, type Trajectory } from '../../../../domain/trajectory.ts';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { StepPlace } from '../../../contract/step.ts';
import type { Sums } from '../../kit/running_sums.ts';
import { inOneRoundTrip, type NamespaceTransaction, type Transaction } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import { sumsAt } from '../../log/read/sums_at.ts';
import { ownerIn } from '../../log/trajectory/lineage.ts';
import { readTrajectory, selectTrajectories } from '../../log/trajectory/rows.ts';

/** A start point that is locked against deletion until the transaction ends. */
export interface LockedStartPoint {
  readonly source: Trajectory;
  /** The trajectory that owns the step. */
  readonly owner: { readonly key: bigint; readonly id: string; readonly depth: bigint };
  readonly sums: Sums;
}

/** `missing`: the step was deleted. `busy`: a deletion holds the owner. An error: no branch is possible there (B1). */
export type FoundPoint = LockedStartPoint | 'missing' | 'busy' | AnabranchError;

/**
 * Finds and locks start points (B1). The number of statements grows only with the lineages that are read to find
 * owners.
 */
export async function holdStartPoints(
  tx: NamespaceTransaction,
  points: readonly StartPoint[],
): Promise<Map<string, FoundPoint>> {
  const wanted = new Map(points.map((point) => [nameOf(point), point]));
  if (wanted.size === 0) return new Map();
  const sources = await findSources(tx, points);
  const owned = await inOneRoundTrip(
    [...wanted.values()].map(async (point) => {
      const source = sources.get(point.trajectoryId);
      return { point, source, owner: source && (await ownerKeyOf(tx, source, point.stepNumber)) };
    }),
  );
  const places = owned.flatMap(({ point, source, owner }) =>
    source === undefined || owner === undefined ? [] : [{ tree: source.ref.tree, owner, stepNumber: point.stepNumber }],
  );
  const [owners, sums] = places.length === 0 ? [NONE, NONE] : await holdSteps(tx, places);
  return new Map(
    owned.map(({ point, source, owner }): [string, FoundPoint] => {
      const sumsHere = owner === undefined ? undefined : sums.get(tupleKey(owner, point.stepNumber));
      if (source === undefined || owner === undefined || sumsHere === undefined) return [nameOf(point), 'missing'];
      const locked = owners.get(owner);
      if (locked === undefined) return [nameOf(point), 'busy'];
      if (isSet(locked.purging)) return [nameOf(point), 'missing'];
      const fault = depthFault(locked);
      if (fault !== undefined) return [nameOf(point), fault];
      return [nameOf(point), { source, owner: locked, sums: sumsHere }];
    }),
  );
}

const NONE = new Map<never, never>();

export function nameOf({ trajectoryId, stepNumber }: StartPoint): string {
  return tupleKey(trajectoryId, stepNumber);
}

/** Returns the visible trajectories by id. */
async function findSources(tx: NamespaceTransaction, points: readonly StartPoint[]): Promise<Map<string, Trajectory>> {
  const ids = [...new Set(points.map(({ trajectoryId }) => trajectoryId))];
  const rows = await selectTrajectories(tx.db)
    .where('t.namespace', '=', tx.namespace)
    .where('t.id', 'in', ids)
    .where('t.hidden', '=', 0)
    .execute();
  return new Map(rows.map((row) => [row.id, readTrajectory(row)]));
}

async function ownerKeyOf(tx: NamespaceTransaction, source: Trajectory, step: bigint): Promise<bigint | undefined> {
  if (step >= source.nextStepNumber) return undefined;
  if (step >= ownBegin(source)) return source.ref.key;
  return ownerIn(tx, source.ref, step);
}

/**
 * Locks owners in order of key, skipping those that a deletion holds. Then reads the sums at the existing steps under
 * the locks.
 */
async function holdSteps(tx: Transaction, places: readonly StepPlace[]) {
  const { engine } = tx;
  const trees = [...new Set(places.map(({ tree }) => tree))];
  const keys = [...new Set(places.map(({ owner }) => owner))];
  const owners = tx.db
    .selectFrom('trajectories as t')
    .select(['t.key', 't.id', 't.depth', 't.purging'])
    .where(engine.sql.among(sql.ref('t.tree'), trees))
    .where(engine.sql.among(sql.ref('t.key'), keys))
    .orderBy('t.tree')
    .orderBy('t.key');
  const [locked, sums] = await inOneRoundTrip([engine.locks.freeRows(owners, 'keep').execute(), sumsAt(tx, places)]);
  return [new Map(locked.map((row) => [row.key, row])), sums] as const;
}
