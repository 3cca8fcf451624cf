import { requireEpoch, requireWritable } from '../../../domain/append.ts';
import type { Caller } from '../../../domain/caller.ts';
import {
  AnabranchError,
  invalidField,
  stateNotFound,
  stepNotFound,
  trajectoryNotFound,
} from '../../../domain/errors.ts';
import { LIMITS } from '../../../domain/limits.ts';
import type { StateRef } from '../../../domain/step.ts';
import { ownBegin, type TrajectoryRef } from '../../../domain/trajectory.ts';
import type { AttachedState } from '../../contract/append.ts';
import type { Engine } from '../engine.ts';
import { encodeStates } from '../state/bytes.ts';
import { ReferredStates } from '../state/referred_states.ts';
import { inOneRoundTrip } from '../together.ts';
import { findById, findByKey } from '../trajectory/rows.ts';
import { type Transaction, writeAs } from '../transaction.ts';
import { readDigest } from '../values.ts';
import { StepWriter } from './writer.ts';

export async function attachState(
  engine: Engine,
  caller: Caller,
  attaching: AttachedState,
): Promise<{ readonly state: StateRef; readonly duplicate: boolean }> {
  const { trajectoryId, stepNumber, name, digest, mediaType, data } = attaching;
  const inline = data === undefined ? [] : encodeStates([{ digest, data }]);
  return writeAs(engine, caller, async (tx) => {
    const found = await findById(tx, trajectoryId);
    if (found === undefined) throw trajectoryNotFound(trajectoryId);
    await lockRow(tx, found.ref);
    const row = requireWritable(await findByKey(tx, found.ref.tree, found.ref.key), trajectoryId, attaching.uid);
    requireEpoch(row, attaching.writerEpoch);
    if (stepNumber >= row.nextStepNumber) throw stepNotFound(trajectoryId, stepNumber, row.nextStepNumber);
    if (stepNumber < ownBegin(row)) throw stepInherited(trajectoryId, stepNumber, row.nextStepNumber);
    const there = await tx.db
      .selectFrom('step_states')
      .select(['digest', 'media_type', 'size'])
      .where('tree', '=', row.ref.tree)
      .where('trajectory', '=', row.ref.key)
      .where('step_number', '=', stepNumber)
      .where('name', '=', name)
      .executeTakeFirst();
    if (there !== undefined) {
      if (readDigest(there.digest) !== digest || there.media_type !== mediaType) throw stateConflict(stepNumber, name);
      return { state: { name, digest, mediaType, size: Number(there.size) }, duplicate: true };
    }
    await refuseTooMany(tx, row.ref, stepNumber);
    const referred = new ReferredStates(tx);
    await inOneRoundTrip([tx.readNow(), referred.find(caller.namespace, [digest])]);
    const writer = new StepWriter(tx, referred);
    if (data === undefined && !referred.sizes(caller.namespace).has(digest)) throw stateNotFound(digest);
    const state = writer.attach(caller.namespace, row.ref, stepNumber, { name, digest, mediaType, size: 0 }, inline);
    await writer.write();
    return { state, duplicate: false };
  });
}

/** W9: a step has at most 16 states, inline and attached ones together. */
async function refuseTooMany(tx: Transaction, ref: TrajectoryRef, stepNumber: bigint): Promise<void> {
  const names = await tx.db
    .selectFrom('step_states')
    .select('name')
    .where('tree', '=', ref.tree)
    .where('trajectory', '=', ref.key)
    .where('step_number', '=', stepNumber)
    .execute();
  if (names.length < LIMITS.statesPerStep) return;
  throw invalidField(
    'state',
    `cannot be added: step ${stepNumber} has ${names.length} states, and the maximum is ${LIMITS.statesPerStep}`,
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
  await tx.engine
    .lock(
      tx.db.selectFrom('trajectories').select('key').where('tree', '=', ref.tree).where('key', '=', ref.key),
      'write',
    )
    .execute();
}
