import { requireEpoch, requireWritable } from '../../../../domain/append.ts';
import type { Caller } from '../../../../domain/caller.ts';
import {
  AnabranchError,
  invalidField,
  stateNotFound,
  stepNotFound,
  trajectoryNotFound,
} from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { withAttached } from '../../../../domain/pruning.ts';
import { isKept, isSmall, type StateRef } from '../../../../domain/step.ts';
import { frameBytes } from '../../../../domain/step_codec/frames.ts';
import { ownBegin, type TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { NewAttachedState } from '../../../contract/append.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { inOneRoundTrip, scopeOf, type Transaction, writeAs } from '../../kit/transaction.ts';
import { StepWriter } from '../append/writer.ts';
import type { StatesEngine } from '../engine.ts';
import { segmentsOver } from '../read/read_stored.ts';
import { type Segment, SegmentCursor } from '../read/segment.ts';
import { withRun } from '../read/step_runs.ts';
import { updateSegment } from '../segments.ts';
import { findById, findByKey } from '../trajectory/rows.ts';
import { readAttachments } from './attached.ts';
import type { EncodedState } from './bytes.ts';
import type { StateEncoder } from './encoder.ts';
import { ReferredStates } from './referred_states.ts';

export async function attachState(
  engine: StatesEngine,
  encoder: StateEncoder,
  caller: Caller,
  attaching: NewAttachedState,
): Promise<{ readonly state: StateRef; readonly duplicate: boolean }> {
  const { stepNumber, name, digest, mediaType, data } = attaching;
  const sent: StateRef = { name, digest, mediaType, size: data?.length ?? 0, data };
  const found = await findById(scopeOf(engine, caller.namespace), attaching.trajectoryId);
  if (found === undefined) throw trajectoryNotFound(attaching.trajectoryId);
  const states = data === undefined || isSmall(sent) ? [] : [{ digest, data }];
  const batch = { caller, ref: found.ref, steps: [{ stepNumber, states: [{ name, digest }] }], states };
  const [outcome] = await encoder.store(engine, [batch], async (inline) => {
    const stored = await attachEncoded(engine, caller, { attaching, ref: found.ref, sent, inline: inline.flat() });
    return [{ kind: stored.duplicate ? 'refused' : 'committed', stored }];
  });
  return outcome!.stored;
}

interface Attaching {
  readonly attaching: NewAttachedState;
  readonly ref: TrajectoryRef;
  readonly sent: StateRef;
  readonly inline: readonly EncodedState[];
}

function attachEncoded(
  engine: StatesEngine,
  caller: Caller,
  { attaching, ref, sent, inline }: Attaching,
): Promise<{ readonly state: StateRef; readonly duplicate: boolean }> {
  const { trajectoryId, stepNumber, name, digest, mediaType, data } = attaching;
  return writeAs(engine, caller, async (tx) => {
    await lockRow(tx, ref);
    const row = requireWritable(await findByKey(tx, ref.tree, ref.key), trajectoryId, attaching.uid);
    requireEpoch(row, attaching.writerEpoch);
    if (stepNumber >= row.nextStepNumber) throw stepNotFound(trajectoryId, stepNumber, row.nextStepNumber);
    if (stepNumber < ownBegin(row)) throw stepInherited(trajectoryId, stepNumber, row.nextStepNumber);
    const segment = await segmentOf(tx, row.ref, stepNumber);
    if (segment === undefined) throw trajectoryNotFound(trajectoryId);
    const { states, bytes } = await statesOf(tx, row.ref, segment, stepNumber);
    const there = states.find((state) => state.name === name);
    if (there !== undefined) {
      if (there.digest !== digest || there.mediaType !== mediaType) throw stateConflict(stepNumber, name);
      if (isKept(there)) return { state: there, duplicate: true };
      await deletePruned(tx, row.ref, stepNumber, name);
    } else if (states.length >= LIMITS.statesPerStep) throw tooManyStates(stepNumber, states.length);
    if (there === undefined && bytes + refBytes(sent) > STEP_WITH_STATES_BYTES) throw stepTooLarge(stepNumber);
    const referred = new ReferredStates(tx);
    const looked = isSmall(sent) ? [] : [digest];
    await inOneRoundTrip([tx.readNow(), referred.find(caller.namespace, looked)]);
    const writer = new StepWriter(tx, referred);
    if (data === undefined && !referred.sizes(caller.namespace).has(digest)) throw stateNotFound(digest);
    const attached = { ...sent, attachTime: parseInstant(tx.now) };
    const state = writer.attach(caller.namespace, row.ref, stepNumber, attached, inline);
    await writer.write();
    const index = Number(stepNumber - segment.first_step_number);
    await updateSegment(tx, row.ref, segment, { state_names: withRun(segment.state_names, name, index) });
    await mergeAgain(tx, row.ref, segment);
    return { state, duplicate: false };
  });
}

type NamedSegment = Segment & Pick<SegmentRow, 'state_names' | 'labels'>;

/** Locks the segment against merges, which would lose a name that is added meanwhile. */
async function segmentOf(tx: Transaction, ref: TrajectoryRef, stepNumber: bigint): Promise<NamedSegment | undefined> {
  for (;;) {
    const query = segmentsOver(tx, ref, stepNumber, stepNumber + 1n).select(['s.state_names', 's.labels']);
    const segment = await tx.engine.locks.rows(query, 'write').executeTakeFirst();
    // A merge that has just committed has replaced the segment, if there was one.
    if (segment !== undefined || (await query.executeTakeFirst()) === undefined) return segment;
  }
}

/**
 * Bytes of a step with its attached states. A response has this step, commit time, epoch, reward sum and a page token.
 */
export const STEP_WITH_STATES_BYTES = LIMITS.messageBytes - 1024;

/** Returns an upper bound of the encoded size of a reference to a state. */
export function refBytes({ name, mediaType }: StateRef): number {
  return 128 + Buffer.byteLength(name) + Buffer.byteLength(mediaType);
}

/**
 * Returns the states of a step, those that came with it and those that were attached, and the size of the step with
 * them. Errors: STEP_CORRUPT.
 */
async function statesOf(
  tx: Transaction,
  ref: TrajectoryRef,
  segment: Segment,
  stepNumber: bigint,
): Promise<{ readonly states: readonly StateRef[]; readonly bytes: number }> {
  const steps = new SegmentCursor(segment);
  while (steps.stepNumber < stepNumber && steps.next());
  const attached = await readAttachments(tx.db, ref, { from: stepNumber, to: stepNumber + 1n });
  const states = withAttached(
    steps.read('BASIC').states,
    attached.map(({ state }) => ({ ...state, data: undefined })),
  );
  return {
    states,
    bytes: states.reduce((sum, state) => sum + refBytes(state), frameBytes(steps.sentBytes)),
  };
}

/** S13: a pruned state that was attached is attached anew. One that came with the step keeps its mark there. */
async function deletePruned(tx: Transaction, ref: TrajectoryRef, stepNumber: bigint, name: string): Promise<void> {
  await tx.db
    .deleteFrom('attached_states')
    .where('tree', '=', ref.tree)
    .where('trajectory', '=', ref.key)
    .where('step_number', '=', stepNumber)
    .where('name', '=', name)
    .execute();
}

/** The next merge begins at this segment, if it was merged, and writes the state into its step. */
async function mergeAgain(tx: Transaction, ref: TrajectoryRef, { first_step_number: first }: Segment) {
  await tx.db
    .updateTable('trajectories')
    .set({ merged_to: first })
    .where('tree', '=', ref.tree)
    .where('key', '=', ref.key)
    .where('merged_to', '>', first)
    .execute();
}

/** W9: the limit counts the states that came with the step, and the attached ones. */
function tooManyStates(stepNumber: bigint, count: number): AnabranchError {
  return invalidField(
    'state',
    `cannot be added: step ${stepNumber} has ${count} states, and the maximum is ${LIMITS.statesPerStep}`,
  );
}

/** W3: a step must fit into one message when it is read. */
function stepTooLarge(stepNumber: bigint): AnabranchError {
  return invalidField(
    'state',
    `cannot be added: with the names, digests and media types of its states, step ${stepNumber} may have at most ${STEP_WITH_STATES_BYTES} bytes`,
  );
}

function stepInherited(trajectoryId: string, stepNumber: bigint, end: bigint): AnabranchError {
  return new AnabranchError(
    'STEP_NOT_FOUND',
    `Step ${stepNumber} of trajectory ${trajectoryId} is inherited, not its own: attach the state to the trajectory that owns it (GetLineage returns it).`,
    { metadata: { trajectory_id: trajectoryId, step_number: `${stepNumber}`, next_step_number: `${end}` } },
  );
}

function stateConflict(stepNumber: bigint, name: string): AnabranchError {
  return new AnabranchError(
    'STATE_CONFLICT',
    `Step ${stepNumber} has another state named "${name}": states never change; attach it under another name.`,
    { metadata: { step_number: `${stepNumber}`, state_name: name } },
  );
}

async function lockRow(tx: Transaction, ref: TrajectoryRef): Promise<void> {
  await tx.engine.locks
    .rows(
      tx.db.selectFrom('trajectories').select('key').where('tree', '=', ref.tree).where('key', '=', ref.key),
      'write',
    )
    .execute();
}
