import type { AppendStepRequest, TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { trajectoryNotFound } from '../../domain/errors.ts';
import { isSealed } from '../../domain/lifecycle.ts';
import { commitEntry, type NewEntry } from '../../stream/append/entries.ts';
import { findTrajectory } from '../../stream/find.ts';
import { fromInstant, required, toStepReference, toView } from '../convert/values.ts';
import type { Methods } from '../method.ts';
import { appendBatch } from './append_batch.ts';
import { getCheckpoint } from './checkpoint.ts';
import { fromTrajectory } from './messages.ts';
import { fromPacked, PackedRequest } from './packed_request.ts';
import { stepAt, toSeal, toSingleStep } from './single_step.ts';
import { toOneState } from './step_in.ts';
import { listSteps } from './step_list.ts';
import { fromStateRef, fromStoredStep } from './step_out.ts';

/** Methods of single steps: unary writes (W8), and reads. */
export const stepMethods: Methods<
  typeof TrajectoryService,
  'appendBatch' | 'appendStep' | 'sealTrajectory' | 'attachState' | 'getStep' | 'listSteps' | 'getCheckpoint'
> = {
  appendBatch,

  async appendStep(request, { app, caller }) {
    const outcome = await commitEntry(
      app,
      caller,
      request instanceof PackedRequest ? fromPacked(request.entries[0]!) : toEntry(request),
    );
    const { nextStepNumber, commitTime, duplicates } = outcome;
    return { nextStepNumber, commitTime: fromInstant(commitTime), duplicate: duplicates > 0 };
  },

  /** Ends appends permanently (W5). */
  async sealTrajectory(request, { app, caller }) {
    const seal = toSeal(required(request.seal, 'seal'), 'seal');
    await commitEntry(app, caller, { ...fenceOf(request), steps: [], states: [], tags: [], seal });
    const sealed = await findTrajectory(app, caller, request.trajectoryId);
    // The trajectory was deleted and another one was created with its id.
    if (!isSealed(sealed.status)) throw trajectoryNotFound(sealed.id);
    return { trajectory: fromTrajectory(sealed, 'FULL') };
  },

  async attachState(request, { app, caller }) {
    const stepNumber = required(request.stepNumber, 'step_number');
    const { ref, data } = toOneState(required(request.state, 'state'), 'state');
    const { name, digest, mediaType } = ref;
    const attaching = { ...fenceOf(request), stepNumber, name, digest, mediaType, data };
    const { state, duplicate } = await app.store.attachState(caller, attaching);
    return { state: fromStateRef(state), duplicate };
  },

  async getStep(request, { app, caller }) {
    const at = toStepReference(request);
    const trajectory = await findTrajectory(app, caller, request.trajectoryId);
    const { owner, step } = await stepAt(app, caller, trajectory, at, toView(request.view, 'FULL'));
    return { trajectoryId: owner.id, step: fromStoredStep(step) };
  },

  listSteps,

  getCheckpoint: (request, { app, caller }) => getCheckpoint(app, caller, request),
};

/** Errors: INVALID_REQUEST, DIGEST_MISMATCH. */
function toEntry(request: AppendStepRequest): NewEntry {
  const step = toSingleStep(required(request.step, 'step'), 'step');
  return { ...fenceOf(request), ...step, tags: [], seal: undefined };
}

/** Returns the trajectory and the writer of a unary write (W8). */
function fenceOf(request: {
  readonly trajectoryId: string;
  readonly uid: string;
  readonly writerEpoch?: bigint | undefined;
}) {
  const { trajectoryId, uid, writerEpoch } = request;
  return { trajectoryId, uid: uid || undefined, writerEpoch };
}
