import { AnabranchError, trajectoryNotFound } from '../../../../domain/errors.ts';
import type { Trajectory, TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { NewBranch, NewTrajectory, TrajectoryCreation } from '../../../contract/trajectory.ts';
import { byId } from '../../kit/by_id.ts';
import { findRequest, keepRequest, madeBy, type Noun, requestIdReused } from '../../kit/requests.ts';
import { type CallerTransaction, inOneRoundTrip, type NamespaceTransaction } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import type { StatesEngine } from '../engine.ts';
import { type EncodedState, encodeStates } from '../states/bytes.ts';
import { lockBelonging } from './belonging.ts';
import { branchPointOf, makeBranch, makeRoot, type Opening, trajectoryExists } from './create.ts';
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

/**
 * Creates a root or a branch, or finds the root. Errors: as createTrajectory and branchTrajectory, without those of the
 * key.
 */
export async function makeTrajectory(
  tx: CallerTransaction<StatesEngine>,
  making: NewTrajectory | NewBranch,
  inline: readonly EncodedState[],
): Promise<{ readonly ref: TrajectoryRef; readonly id: string; readonly made: Trajectory }> {
  const there = 'returnExisting' in making && making.returnExisting ? await findSame(tx, making) : undefined;
  const ref = there ?? (await insert(tx, making, inline, undefined));
  return { ref, id: making.id, made: await readMade(tx, ref) };
}

/** Returns the trajectory with the id. Errors: CONFIG_MISMATCH (another request created it), TRAJECTORY_EXISTS. */
async function findSame(
  tx: CallerTransaction,
  { id, createDigest = '' }: NewTrajectory,
): Promise<TrajectoryRef | undefined> {
  const row = await byId(tx, 'trajectories', id).select(['tree', 'key', 'hidden', 'create_digest']).executeTakeFirst();
  if (row === undefined) return undefined;
  if (isSet(row.hidden)) throw trajectoryExists(id);
  if (row.create_digest === '' || row.create_digest !== createDigest) throw createMismatch(id);
  return row;
}

function insert(
  tx: CallerTransaction<StatesEngine>,
  making: NewTrajectory | NewBranch,
  inline: readonly EncodedState[],
  opening: Opening | undefined,
): Promise<TrajectoryRef> {
  return 'sourceId' in making ? fromSource(tx, making, opening) : fromNothing(tx, making, inline, opening);
}

async function readMade(tx: CallerTransaction, { tree, key }: TrajectoryRef): Promise<Trajectory> {
  const made = await findByKey(tx, tree, key);
  if (made === undefined) throw new Error('the trajectory created in this transaction is missing');
  return made;
}

async function fromNothing(
  tx: CallerTransaction<StatesEngine>,
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
  tx: CallerTransaction<StatesEngine>,
  { making, key }: TrajectoryCreation,
  inline: readonly EncodedState[],
  opening: Opening,
): Promise<Trajectory | undefined> {
  const [row, request, deleted] = await inOneRoundTrip([
    byId(tx, 'trajectories', making.id).select(['hidden', 'create_digest']).executeTakeFirst(),
    findRequest(tx, key),
    wasDeleted(tx, making.id),
  ]);
  if (row !== undefined && isSet(row.hidden)) throw trajectoryNotFound(making.id);
  if (row !== undefined && row.create_digest !== '') {
    if (row.create_digest !== (making.createDigest ?? '')) throw madeByAnother(making.id);
    return undefined;
  }
  // Another call made a row without a digest. A missing row may have been created since it was looked up.
  const made = await madeBy(tx, key, request, MADE_TRAJECTORIES);
  if (made?.id === making.id) return undefined;
  if (row !== undefined) throw madeByAnother(making.id);
  if (made !== undefined) throw requestIdReused(key.requestId);
  if (deleted) throw trajectoryNotFound(making.id);
  const ref = await insert(tx, making, inline, opening);
  const [created] = await inOneRoundTrip([readMade(tx, ref), keepRequest(tx, key, ref, making.id)]);
  return created;
}

async function wasDeleted(tx: NamespaceTransaction, id: string): Promise<boolean> {
  const query = tx.db.selectFrom('deleted_trajectories').select('id').where('namespace', '=', tx.namespace);
  return (await query.where('id', '=', id).executeTakeFirst()) !== undefined;
}

function createMismatch(id: string): AnabranchError {
  return new AnabranchError(
    'CONFIG_MISMATCH',
    `Trajectory ${id} exists, and another request created it. Send the same values, or use another trajectory_id.`,
    { metadata: { trajectory_id: id } },
  );
}

function madeByAnother(id: string): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_EXISTS',
    `Trajectory ${id} exists, and another request created it. Use another id, or open it without create.`,
    { metadata: { trajectory_id: id } },
  );
}
