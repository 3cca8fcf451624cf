import type { Caller } from '../../../../domain/caller.ts';
import { trajectoryHint } from '../../../../domain/change.ts';
import { AnabranchError, type Reason } from '../../../../domain/errors.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { IdempotencyKey } from '../../../contract/request.ts';
import type { NewEndBranch } from '../../../contract/trajectory.ts';
import { keysById } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { padded } from '../../kit/kept_queries.ts';
import { findRequest, keepRequest, requireSame } from '../../kit/requests.ts';
import { type CallerTransaction, inOneRoundTrip, type NamespaceTransaction, writeAs } from '../../kit/transaction.ts';
import { againWhenRaced } from '../../kit/unique_violation.ts';
import { lockBelonging } from './belonging.ts';
import { makeBranch } from './create.ts';
import { findRefs } from './rows.ts';

export async function branchTrajectories(
  engine: Engine,
  caller: Caller,
  branches: readonly NewEndBranch[],
  key: IdempotencyKey,
): Promise<number> {
  const ids = branches.map(({ id }) => id);
  const sources = branches.map(({ source }) => source.id);
  const { made, found } = await againWhenRaced(() =>
    writeAs(engine, caller, async (tx) => {
      const [request, existing, deleted, visible] = await inOneRoundTrip([
        findRequest(tx, key),
        keysById(tx, 'trajectories', ids),
        deletedAmong(tx, ids),
        findRefs(tx, [...ids, ...sources]),
      ]);
      if (request !== undefined) requireSame(key, request);
      const taken = new Set([...existing.keys(), ...deleted.map(({ id }) => id)]);
      const made: { readonly id: string; readonly ref: TrajectoryRef }[] = [];
      for (const branch of branches) {
        const { id, source } = branch;
        if (taken.has(id) || visible.get(source.id)?.key !== source.ref.key) continue;
        const ref = await branchOf(tx, branch);
        if (ref !== undefined) made.push({ id, ref });
      }
      const [first] = made;
      if (request === undefined && first !== undefined) await keepRequest(tx, key, first.ref, first.id);
      return { made, found: ids.filter((id) => visible.has(id)).length };
    }),
  );
  engine.changes.announce(made.map(({ ref }) => trajectoryHint(ref.key)));
  return found + made.length;
}

/** What a creation fails with if the source is deleted while it runs, possibly with its run. */
const DELETED: ReadonlySet<Reason> = new Set([
  'TRAJECTORY_NOT_FOUND',
  'STEP_NOT_FOUND',
  'RUN_NOT_FOUND',
  'EXPERIMENT_NOT_FOUND',
]);

/** The id of a branch that is deleted is kept, as if it had been created when it was opened (W1). */
async function branchOf(tx: CallerTransaction, branch: NewEndBranch): Promise<TrajectoryRef | undefined> {
  const { source } = branch;
  try {
    const belonging = await lockBelonging(tx, source.runId || undefined, source.experimentId || undefined);
    const point = source.nextStepNumber - 1n;
    return await makeBranch(tx, source, point, { ...branch, opening: { writer: undefined } }, belonging);
  } catch (error) {
    if (error instanceof AnabranchError && DELETED.has(error.reason)) return undefined;
    throw error;
  }
}

/** Returns those of the ids that are kept of deleted trajectories. */
async function deletedAmong(tx: NamespaceTransaction, ids: readonly string[]) {
  if (ids.length === 0) return [];
  const query = tx.db.selectFrom('deleted_trajectories').select('id').where('namespace', '=', tx.namespace);
  return query.where('id', 'in', padded(ids)).execute();
}
