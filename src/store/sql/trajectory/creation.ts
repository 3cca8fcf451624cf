import { AnabranchError, trajectoryNotFound } from '../../../domain/errors.ts';
import { isOtherRequest } from '../../../domain/request_digest.ts';
import type { Trajectory, TrajectoryRef } from '../../../domain/trajectory.ts';
import type { NewBranch, NewTrajectory, TrajectoryCreation } from '../../contract/trajectory.ts';
import { byId } from '../by_id.ts';
import { findMade, keepRequest, type Noun, requestIdReused } from '../requests.ts';
import { type EncodedState, encodeStates } from '../state/bytes.ts';
import { inOneRoundTrip } from '../together.ts';
import type { CallerTransaction, NamespaceTransaction } from '../transaction.ts';
import { isSet } from '../values.ts';
import { lockBelonging } from './belonging.ts';
import { branchPointOf, makeBranch, makeRoot, type Opening } from './create.ts';
import { findById, findByKey } from './rows.ts';

export const MADE_TRAJECTORIES: Noun<Trajectory> = {
  name: 'Trajectory',
  async find(scope, { tree, key }) {
    const found = await findByKey(scope, tree, key);
    return found?.hidden === true ? undefined : found;
  },
};

/** Encodes the inline states of a new trajectory. Call it before the transaction, because it takes time. */
export async function encodeInline(making: NewTrajectory | NewBranch): Promise<EncodedState[]> {
  return encodeStates('states' in making ? making.states : []);
}

/** Creates a root or a branch. Errors: as createTrajectory and branchTrajectory, without those of the key. */
export async function makeTrajectory(
  tx: CallerTransaction,
  making: NewTrajectory | NewBranch,
  inline: readonly EncodedState[],
  opening?: Opening,
): Promise<{ readonly ref: TrajectoryRef; readonly id: string; readonly made: Trajectory }> {
  const ref =
    'sourceId' in making ? await fromSource(tx, making, opening) : await fromNothing(tx, making, inline, opening);
  const made = await findByKey(tx, ref.tree, ref.key);
  if (made === undefined) throw new Error('the trajectory created in this transaction is missing');
  return { ref, id: making.id, made };
}

async function fromNothing(
  tx: CallerTransaction,
  making: NewTrajectory,
  inline: readonly EncodedState[],
  opening: Opening | undefined,
): Promise<TrajectoryRef> {
  const belonging = await lockBelonging(tx, making.runId, making.experimentId);
  await tx.readNow();
  return makeRoot(tx, { ...making, opening }, inline, belonging);
}

async function fromSource(
  tx: CallerTransaction,
  making: NewBranch,
  opening: Opening | undefined,
): Promise<TrajectoryRef> {
  const source = await findById(tx, making.sourceId);
  if (source === undefined || source.hidden) throw trajectoryNotFound(making.sourceId);
  const belonging = await lockBelonging(tx, source.runId || undefined, source.experimentId || undefined);
  const point = await branchPointOf(tx, source, making.at);
  return makeBranch(tx, source, point, { ...making, opening }, belonging);
}

/**
 * W1, check 0: creates a trajectory that does not exist, and grants it to the writer, if any, with epoch 1. Returns
 * undefined if it exists and the same request created it. Throws UniqueViolation if a concurrent transaction created
 * it: repeat the transaction. `inline` is what `encodeInline` returned. Errors: TRAJECTORY_EXISTS (another request
 * created it), TRAJECTORY_NOT_FOUND (it was deleted), REQUEST_ID_REUSED, and those of `makeTrajectory`.
 */
export async function createMissing(
  tx: CallerTransaction,
  { making, key }: TrajectoryCreation,
  inline: readonly EncodedState[],
  opening: Opening,
): Promise<Trajectory | undefined> {
  const row = await byId(tx, 'trajectories', making.id).select(['key', 'hidden', 'create_digest']).executeTakeFirst();
  if (row !== undefined) {
    if (isSet(row.hidden)) throw trajectoryNotFound(making.id);
    if (!(await isMadeBy(tx, row, { making, key }))) throw madeByAnother(making.id);
    return undefined;
  }
  const [other, deleted] = await inOneRoundTrip([findMade(tx, key, MADE_TRAJECTORIES), wasDeleted(tx, making.id)]);
  if (other !== undefined) throw requestIdReused(key.requestId);
  if (deleted) throw trajectoryNotFound(making.id);
  const { ref, made } = await makeTrajectory(tx, making, inline, opening);
  await keepRequest(tx, key, ref, making.id);
  return made;
}

/** Whether the same request created the row. Rows of earlier versions have no digest, but may have a request id. */
async function isMadeBy(
  tx: NamespaceTransaction,
  row: { readonly key: bigint; readonly create_digest: string },
  { making, key }: TrajectoryCreation,
): Promise<boolean> {
  if (row.create_digest !== '') return !isOtherRequest(row.create_digest, making.createDigest ?? '');
  return (await findMade(tx, key, MADE_TRAJECTORIES))?.ref.key === row.key;
}

async function wasDeleted(tx: NamespaceTransaction, id: string): Promise<boolean> {
  const query = tx.db.selectFrom('deleted_trajectories').select('id').where('namespace', '=', tx.namespace);
  return (await query.where('id', '=', id).executeTakeFirst()) !== undefined;
}

function madeByAnother(id: string): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_EXISTS',
    `Trajectory ${id} exists, and another request created it. Use another id, or open it without create.`,
    { metadata: { trajectory_id: id } },
  );
}
