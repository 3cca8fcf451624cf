import { AnabranchError, trajectoryNotFound } from './errors.ts';
import { shorten } from './ids.ts';
import { isSealed, type SealStatus, type TrajectoryStatus } from './lifecycle.ts';
import { addReward } from './step.ts';
import { type PackedStep, storedStepDigest } from './step_codec/packed_step.ts';
import type { Trajectory } from './trajectory.ts';

/** A writer that asks for the next epoch (W1). */
export interface WriterRequest {
  readonly writerId: string;
  readonly takeOverEpoch: bigint | undefined;
}

/** An `open` request of an append stream (W1). */
export interface OpenRequest extends WriterRequest {
  readonly trajectoryId: string;
  readonly uid: string | undefined;
  readonly expectedNextStepNumber: bigint | undefined;
}

export interface SealRequest {
  readonly status: SealStatus;
  readonly message: string;
}

/** A tag for a step of the same message (B5). */
export interface StepTag {
  readonly name: string;
  readonly stepNumber: bigint;
}

/** The end of a trajectory: read under the lock, then moved while a group of batches is decided. */
export interface Head {
  end: bigint;
  status: TrajectoryStatus;
  statusMessage: string;
  writerId: string;
  writerEpoch: bigint;
  rewardSum: number;
}

/**
 * One message of steps, stored completely or not at all (W3). `writerEpoch` undefined: a unary call without an epoch
 * (W8).
 */
export interface Writing {
  readonly trajectoryId: string;
  readonly writerEpoch: bigint | undefined;
  /** If set, the steps are written under the epoch that this writer is granted, and `writerEpoch` is ignored (W14). */
  readonly writer?: WriterRequest | undefined;
  readonly steps: readonly PackedStep[];
  /** In order of step number. Ignored for steps that are not new. */
  readonly tags: readonly StepTag[];
  readonly seal: SealRequest | undefined;
}

/** The decision about a batch: which of its steps are new, and whether it seals the trajectory. */
export interface AppendDecision {
  readonly appended: readonly PackedStep[];
  readonly duplicates: number;
  /** `sealed`: the batch seals the trajectory. `was_sealed`: an equal seal exists already. */
  readonly seal: 'none' | 'sealed' | 'was_sealed';
  /** The epoch that `Writing.writer` was granted. */
  readonly epoch: bigint | undefined;
}

/**
 * W1: returns the epoch to grant. `row` is undefined if the trajectory does not exist. Throws without changing
 * anything.
 */
export function decideOpen(row: Trajectory | undefined, open: OpenRequest): bigint {
  const there = requireWritable(row, open.trajectoryId, open.uid);
  requirePosition(there, open);
  return decideGrant(there, open);
}

/** W1: returns the epoch to grant. Errors: WRITER_FENCED. */
function decideGrant({ writerId, writerEpoch }: Pick<Head, 'writerId' | 'writerEpoch'>, writer: WriterRequest): bigint {
  const granted = writerEpoch === 0n || writerId === writer.writerId || writer.takeOverEpoch === writerEpoch;
  if (!granted) throw writerFenced(writerId, writerEpoch);
  return writerEpoch + 1n;
}

/** N3: returns whether a grant to this principal fences a writer of another one. */
export function fencesAnother(
  { writerEpoch, writerActor }: { readonly writerEpoch: bigint; readonly writerActor: string },
  actor: string,
): boolean {
  return writerEpoch > 0n && writerActor !== actor;
}

/** W1: requires that the trajectory has the expected end, if the request has one. */
export function requirePosition(there: Trajectory, open: OpenRequest): void {
  if (open.expectedNextStepNumber !== undefined && open.expectedNextStepNumber !== there.nextStepNumber) {
    throw new AnabranchError(
      'UNEXPECTED_POSITION',
      `expected_next_step_number is ${open.expectedNextStepNumber}, but trajectory ${there.id} ends at ${there.nextStepNumber}: continue at its end, or branch.`,
      { metadata: { next_step_number: `${there.nextStepNumber}` } },
    );
  }
}

/** Checks that the row exists, is not hidden, and has the requested uid. The first check of every write. */
export function requireWritable<T extends Pick<Trajectory, 'hidden' | 'uid'>>(
  row: T | undefined,
  trajectoryId: string,
  uid: string | undefined,
): T {
  if (row === undefined || row.hidden || (uid !== undefined && row.uid !== uid)) throw trajectoryNotFound(trajectoryId);
  return row;
}

/**
 * W8: without an epoch, a write is accepted only if no writer was ever granted. Otherwise it must carry the current
 * epoch.
 */
export function requireEpoch(head: Pick<Head, 'writerId' | 'writerEpoch'>, writerEpoch: bigint | undefined): void {
  if ((writerEpoch ?? 0n) !== head.writerEpoch) throw writerFenced(head.writerId, head.writerEpoch);
}

/**
 * W1 to W3, W5: decides one batch and moves the head. Throws without moving it. `storedStep` returns the encoding of a
 * step below the end, including inherited steps.
 */
export function decideAppend(
  head: Head,
  writing: Writing,
  storedStep: (stepNumber: bigint) => Uint8Array | undefined,
): AppendDecision {
  const { writer } = writing;
  const epoch = writer && decideGrant(head, writer);
  if (epoch === undefined) requireEpoch(head, writing.writerEpoch);
  const appended: PackedStep[] = [];
  const within = new Map<bigint, Uint8Array>();
  let end = head.end;
  let duplicates = 0;
  for (const step of writing.steps) {
    if (step.stepNumber < end) {
      const stored = within.get(step.stepNumber) ?? storedStep(step.stepNumber);
      if (stored === undefined || !isSame(stored, step.bytes))
        throw stepConflict(writing.trajectoryId, step.stepNumber, head.end);
      duplicates += 1;
      continue;
    }
    if (isSealed(head.status)) throw trajectorySealed(writing.trajectoryId, head);
    if (step.stepNumber > end) throw stepGap(writing.trajectoryId, step.stepNumber, end);
    appended.push(step);
    if (writing.steps.length > 1) within.set(step.stepNumber, step.bytes);
    end += 1n;
  }
  const seal = decideSeal(head, writing);
  head.end = end;
  for (const step of appended) head.rewardSum = addReward(head.rewardSum, step.reward);
  if (seal === 'sealed' && writing.seal !== undefined) {
    head.status = writing.seal.status;
    head.statusMessage = writing.seal.message;
  }
  if (writer !== undefined && epoch !== undefined) {
    head.writerId = writer.writerId;
    head.writerEpoch = epoch;
  }
  return { appended, duplicates, seal, epoch };
}

/** W6: whether the client sent the same step twice. The sizes of states and the order of metrics may differ. */
function isSame(one: Uint8Array, other: Uint8Array): boolean {
  return Buffer.compare(one, other) === 0 || storedStepDigest(one) === storedStepDigest(other);
}

function decideSeal(head: Head, { seal, trajectoryId }: Writing): AppendDecision['seal'] {
  if (seal === undefined) return 'none';
  if (!isSealed(head.status)) return 'sealed';
  if (head.status === seal.status && head.statusMessage === seal.message) return 'was_sealed';
  throw trajectorySealed(trajectoryId, head);
}

function writerFenced(writerId: string, writerEpoch: bigint): AnabranchError {
  const holder = writerId === '' ? 'no writer' : `writer "${shorten(writerId)}"`;
  return new AnabranchError(
    'WRITER_FENCED',
    `${holder} holds the trajectory at epoch ${writerEpoch}: to take it over, open with take_over_epoch ${writerEpoch}; unary calls must carry writer_epoch ${writerEpoch}.`,
    { metadata: { writer_id: writerId, writer_epoch: `${writerEpoch}` } },
  );
}

/** A retry may succeed: the transaction that holds the row ends soon. */
export function trajectoryLocked(trajectoryId: string, waitedMs: number): AnabranchError {
  return new AnabranchError(
    'DATABASE_UNAVAILABLE',
    `Other transactions have held the row of trajectory ${trajectoryId} for ${waitedMs / 1000} s. Nothing was written. Retry the call.`,
  );
}

function stepConflict(trajectoryId: string, stepNumber: bigint, end: bigint): AnabranchError {
  return new AnabranchError(
    'STEP_CONFLICT',
    `Step ${stepNumber} of trajectory ${trajectoryId} is stored with other content: steps are immutable; append at ${end}, or ${stepNumber === 0n ? 'create a new trajectory' : `branch at ${stepNumber - 1n}`}.`,
    { metadata: { step_number: `${stepNumber}`, next_step_number: `${end}` } },
  );
}

function stepGap(trajectoryId: string, stepNumber: bigint, end: bigint): AnabranchError {
  return new AnabranchError(
    'STEP_GAP',
    `steps.step_number is ${stepNumber}, but the next step of trajectory ${trajectoryId} is ${end}: steps are numbered 0, 1, 2, … without gap.`,
    { metadata: { step_number: `${stepNumber}`, next_step_number: `${end}` } },
  );
}

function trajectorySealed(trajectoryId: string, head: Head): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_SEALED',
    `Trajectory ${trajectoryId} is sealed as ${head.status} and accepts no steps: to continue, branch at a step below ${head.end}.`,
    { metadata: { status: head.status, next_step_number: `${head.end}` } },
  );
}
