import {
  AnabranchError,
  invalidField,
  stepNotFound,
  tagNotFound,
  trajectoryNotFound,
} from '../../../../domain/errors.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { depthFault } from '../../../../domain/lineage.ts';
import { rowStates } from '../../../../domain/step_codec/packed_step.ts';
import { ownBegin, type Trajectory, type TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { NewBranch, NewTrajectory, NewTrajectoryFields } from '../../../contract/trajectory.ts';
import { byId } from '../../kit/by_id.ts';
import { NO_SUMS, type Sums, sumColumns } from '../../kit/running_sums.ts';
import { recordStatus } from '../../kit/status/status_changes.ts';
import type { RowOf } from '../../kit/tables/table.ts';
import { TRAJECTORIES } from '../../kit/tables/trajectories.ts';
import {
  type CallerTransaction,
  inOneRoundTrip,
  type NamespaceTransaction,
  type Transaction,
} from '../../kit/transaction.ts';
import { bindLabels, flag, isSet } from '../../kit/values.ts';
import { StepWriter, sizesOf } from '../append/writer.ts';
import type { StatesEngine } from '../engine.ts';
import { placeKey, sumsAt } from '../read/sums_at.ts';
import type { EncodedState } from '../states/bytes.ts';
import { ReferredStates } from '../states/referred_states.ts';
import type { Belonging } from './belonging.ts';
import { ownerIn } from './lineage.ts';

/** L1: the first status change of a trajectory. */
const CREATION = { ordinal: 0n, from: null, to: 'RUNNING', message: '' } as const;

/** W1: how a trajectory that is created when it is opened begins: granted to a writer of a principal, or to none. */
export interface Opening {
  readonly writer: { readonly id: string; readonly actor: string } | undefined;
}

type Opened = { readonly opening?: Opening | undefined };
type NewFields = NewTrajectoryFields & Opened & Pick<NewTrajectory, 'returnExisting'>;
export type NewRoot = Omit<NewTrajectory, 'runId' | 'experimentId' | 'states'> & Opened;

/**
 * Inserts a root trajectory with its first StatusChange, and step 0 if given. Errors: TRAJECTORY_EXISTS,
 * STATE_NOT_FOUND.
 */
export async function makeRoot(
  tx: CallerTransaction<StatesEngine>,
  fields: NewRoot,
  inline: readonly EncodedState[],
  belonging: Belonging,
): Promise<TrajectoryRef> {
  const [row] = await inOneRoundTrip([tx.engine.keys.next(tx.db, 'trajectories'), refuseTaken(tx, fields)]);
  const ref = { tree: row, key: row };
  const sums = await writeRoot(tx, ref, fields, inline);
  await insertTrajectory(tx, fields, {
    ...ref,
    ...belonging,
    parent: null,
    branch_point: null,
    task_id: fields.taskId,
    next_step_number: fields.root === undefined ? 0n : 1n,
    ...sumColumns(sums),
    depth: 0n,
  });
  return ref;
}

/** Writes step 0, with epoch 0. Returns the sums after it. */
async function writeRoot(
  tx: CallerTransaction<StatesEngine>,
  ref: TrajectoryRef,
  { root, scoredMetrics = [] }: NewRoot,
  inline: readonly EncodedState[],
): Promise<Sums> {
  if (root === undefined) return NO_SUMS;
  const referred = new ReferredStates(tx);
  await referred.find(tx.namespace, rowStates(root));
  const writer = new StepWriter(tx, referred);
  const fault = writer.faultOf(tx.namespace, root, sizesOf(inline));
  if (fault !== undefined) throw fault;
  const sums = writer.add({ ...ref, namespace: tx.namespace, writerEpoch: 0n, scoredMetrics }, NO_SUMS, [root], inline);
  await writer.write();
  return sums;
}

/** Returns the branch point. Errors: TAG_NOT_FOUND, BRANCH_POINT_BEYOND_END. */
export async function branchPointOf(tx: Transaction, source: Trajectory, at: NewBranch['at']): Promise<bigint> {
  const point = 'tag' in at ? await tagged(tx, source, at.tag) : at.stepNumber;
  if (point >= source.nextStepNumber) throw branchPointBeyondEnd(source, point);
  return point;
}

/**
 * Inserts a branch of a trajectory with its first StatusChange (B1). Errors: TRAJECTORY_EXISTS, BRANCH_TOO_DEEP,
 * TRAJECTORY_NOT_FOUND (the step was deleted in the meantime).
 */
export async function makeBranch(
  tx: CallerTransaction,
  source: Trajectory,
  point: bigint,
  fields: NewFields & Pick<NewBranch, 'taskId'>,
  belonging: Belonging,
): Promise<TrajectoryRef> {
  const scoredMetrics = scoredMetricsOf(source, fields);
  const owner = await ownerKey(tx, source, point);
  const [shared, key] = await inOneRoundTrip([
    lockStep(tx, source, owner, point),
    tx.engine.keys.next(tx.db, 'trajectories'),
    tx.readNow(),
    refuseTaken(tx, fields),
  ]);
  const ref = { tree: source.ref.tree, key };
  await insertTrajectory(
    tx,
    { ...fields, scoredMetrics },
    {
      ...ref,
      ...belonging,
      parent: owner,
      branch_point: point,
      task_id: fields.taskId ?? source.taskId,
      next_step_number: point + 1n,
      ...sumColumns(shared.sums),
      depth: shared.ownerDepth + 1n,
    },
  );
  return ref;
}

/**
 * Returns the sums at the branch point and locks its owner's row against deletion, without blocking the owner's writer.
 * Errors: TRAJECTORY_NOT_FOUND (the step was deleted, or the owner is being purged), BRANCH_TOO_DEEP.
 */
async function lockStep(tx: Transaction, source: Trajectory, owner: bigint, point: bigint) {
  const { tree } = source.ref;
  const row = tx.db
    .selectFrom('trajectories')
    .select(['id', 'depth', 'purging'])
    .where('tree', '=', tree)
    .where('key', '=', owner);
  const place = { tree, owner, stepNumber: point };
  const [locked, found] = await inOneRoundTrip([
    tx.engine.locks.rows(row, 'keep').executeTakeFirst(),
    // Runs under the lock, because the statements run in this order.
    sumsAt(tx, [place]),
  ]);
  const sums = found.get(placeKey(place));
  if (locked === undefined || isSet(locked.purging) || sums === undefined) throw trajectoryNotFound(source.id);
  const fault = depthFault(locked);
  if (fault !== undefined) throw fault;
  return { sums, ownerDepth: locked.depth };
}

/** If the caller has looked for the trajectory, and it was created since, the unique index rejects the row. */
async function refuseTaken(tx: NamespaceTransaction, { id, opening, returnExisting }: NewFields): Promise<void> {
  if (opening !== undefined || returnExisting === true) return;
  const taken = await byId(tx, 'trajectories', id).select('key').executeTakeFirst();
  if (taken !== undefined) throw trajectoryExists(id);
}

/** Columns of a new trajectory that do not come from the request. */
type Placement = Pick<
  RowOf<typeof TRAJECTORIES>,
  | 'tree'
  | 'key'
  | 'parent'
  | 'branch_point'
  | 'task_id'
  | 'next_step_number'
  | 'run'
  | 'experiment'
  | 'depth'
  | keyof ReturnType<typeof sumColumns>
>;

/** The statements are sent in order, so later reads of the transaction see the row. */
async function insertTrajectory(tx: CallerTransaction, fields: NewFields, placement: Placement): Promise<void> {
  await tx.engine.bulk.insert(tx.db, TRAJECTORIES, [trajectoryRow(tx.namespace, fields, tx.now, placement)]);
  const { tree, key } = placement;
  await recordStatus(tx, { tree, noun: 'TRAJECTORY', key }, CREATION);
}

/** Returns the row of a RUNNING trajectory. It has no writer, unless it is opened at once. */
export function trajectoryRow(
  namespace: string,
  { id, uid, name, labels, metadataJson, scoredMetrics = [], createDigest = '', opening }: NewFields,
  now: string,
  placement: Placement,
): RowOf<typeof TRAJECTORIES> {
  const begin = placement.branch_point === null ? 0n : placement.branch_point + 1n;
  return {
    ...placement,
    namespace,
    id,
    uid,
    name,
    labels: bindLabels(labels),
    metadata_json: metadataJson,
    metrics: '{}',
    scored_metrics: JSON.stringify(scoredMetrics),
    status: 'RUNNING',
    status_message: '',
    writer_id: opening?.writer?.id ?? '',
    writer_epoch: opening?.writer === undefined ? 0n : 1n,
    writer_actor: opening?.writer?.actor ?? '',
    hidden: 0,
    create_time: now,
    update_time: now,
    seal_time: null,
    purging: 0,
    trimming: 0,
    merged_to: begin,
    indexed_to: begin,
    create_digest: createDigest,
    created_by_open: flag(opening !== undefined),
  };
}

/** A branch has the scored metrics of its source, and its own. Errors: INVALID_REQUEST (too many). */
function scoredMetricsOf(source: Trajectory, { scoredMetrics = [] }: NewTrajectoryFields): string[] {
  const all = [...new Set([...source.scoredMetrics, ...scoredMetrics])];
  if (all.length <= LIMITS.scoredMetrics) return all;
  throw invalidField(
    'scored_metrics',
    `must have at most ${LIMITS.scoredMetrics} keys together with those of trajectory ${source.id}, got ${all.length}`,
  );
}

async function ownerKey(tx: NamespaceTransaction, source: Trajectory, at: bigint): Promise<bigint> {
  if (at >= ownBegin(source)) return source.ref.key;
  const owner = await ownerIn(tx, source.ref, at);
  if (owner === undefined) throw stepNotFound(source.id, at, source.nextStepNumber);
  return owner;
}

async function tagged(tx: Transaction, source: Trajectory, tag: string): Promise<bigint> {
  const row = await tx.db
    .selectFrom('tags')
    .select('step_number')
    .where('tree', '=', source.ref.tree)
    .where('trajectory', '=', source.ref.key)
    .where('name', '=', tag)
    .executeTakeFirst();
  if (row === undefined) throw tagNotFound(source.id, tag);
  return row.step_number;
}

export function trajectoryExists(id: string): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_EXISTS',
    `trajectory_id ${id} is in use, possibly by a trajectory that was deleted and whose rows are still being removed or whose steps its branches need. Use another id, or none.`,
    { metadata: { trajectory_id: id } },
  );
}

export function branchPointBeyondEnd(source: Trajectory, at: bigint): AnabranchError {
  const holds =
    source.nextStepNumber === 0n ? 'it has no steps yet' : `it holds steps 0 to ${source.nextStepNumber - 1n}`;
  return new AnabranchError(
    'BRANCH_POINT_BEYOND_END',
    `step_number ${at} is not a step of trajectory ${source.id}: ${holds}.`,
    { metadata: { step_number: `${at}`, next_step_number: `${source.nextStepNumber}` } },
  );
}
