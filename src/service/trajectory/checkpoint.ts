import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { GetCheckpointRequest } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import { DEFAULT_STATE_NAME, isKept, type StoredStep } from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedStep } from '../../store/contract/step.ts';
import type { App } from '../../stream/app.ts';
import { findTrajectory, requireStillThere } from '../../stream/find.ts';
import { stepBytes } from '../../stream/steps/step_page.ts';
import { toStepReference } from '../convert/values.ts';
import { wholeStates } from '../state/content.ts';
import { stepAt } from './single_step.ts';
import { fromStoredStep } from './step_out.ts';

/** RD3: returns a checkpoint with the bytes of its states that fit. Errors: as GetCheckpoint. */
export async function getCheckpoint(
  app: App,
  caller: Caller,
  request: GetCheckpointRequest,
): Promise<{ readonly trajectoryId: string; readonly step: Step }> {
  const trajectory = await findTrajectory(app, caller, request.trajectoryId);
  const names = [...new Set(request.stateNames.map((name) => name || DEFAULT_STATE_NAME))];
  for (;;) {
    try {
      return await readCheckpoint(app, caller, trajectory, request, names);
    } catch (error) {
      // S13: a state was pruned since the step was found. Then the step is a checkpoint no more, or another one is.
      if (!(error instanceof AnabranchError && error.reason === 'STATE_PRUNED')) throw error;
    }
  }
}

async function readCheckpoint(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  request: GetCheckpointRequest,
  names: readonly string[],
): Promise<{ readonly trajectoryId: string; readonly step: Step }> {
  const { owner, step } = await findCheckpoint(app, caller, trajectory, request, names);
  const wire = fromStoredStep(step);
  await Promise.all([
    inlineStates(app, caller, trajectory, { owner, step }, wire),
    // The checkpoint of a trajectory that is being deleted may not be its latest one.
    requireStillThere(app, caller, trajectory),
  ]);
  return { trajectoryId: owner.id, step: wire };
}

/** Returns the requested step, or the latest checkpoint at or before `at_or_before`, or the latest checkpoint. */
async function findCheckpoint(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  request: GetCheckpointRequest,
  names: readonly string[],
): Promise<OwnedStep> {
  const { stepNumber, tag, atOrBefore } = request;
  if (stepNumber !== undefined || tag !== undefined) {
    const found = await stepAt(app, caller, trajectory, toStepReference(request), 'FULL');
    if (isCheckpoint(found.step, names)) return found;
    throw checkpointNotFound(trajectory, `step ${found.step.stepNumber} has no`, names);
  }
  const last = trajectory.nextStepNumber - 1n;
  const from = atOrBefore === undefined || atOrBefore > last ? last : atOrBefore;
  const lineage = await app.lineages.whole(app.store, caller.namespace, trajectory);
  const found = await app.store.findCheckpoint(caller.namespace, trajectory.ref.tree, lineage, from, names);
  if (found !== undefined) return found;
  await requireStillThere(app, caller, trajectory);
  const searched = last < 0n ? 'there is no step with a' : `no step up to ${from} has a`;
  throw checkpointNotFound(trajectory, searched, names);
}

function isCheckpoint(step: StoredStep, names: readonly string[]): boolean {
  const kept = step.states.filter(isKept);
  if (names.length === 0) return kept.length > 0;
  return names.every((name) => kept.some((state) => state.name === name));
}

/** Adds the verified bytes of states, in the order of their names. Skips states that do not fit. */
async function inlineStates(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  { owner, step }: OwnedStep,
  wire: Step,
): Promise<void> {
  let room = LIMITS.messageBytes - 1024 - stepBytes(step);
  const fitting = step.states.filter(isKept).filter(({ size }) => {
    if (size > LIMITS.inlineStateBytes || size > room) return false;
    room -= size;
    return true;
  });
  const bytes = await wholeStates({ app, caller }, trajectory, { owner, step }, fitting);
  for (const state of wire.states) {
    const data = bytes.get(state.name);
    if (data !== undefined) state.data = data;
  }
}

function checkpointNotFound(trajectory: Trajectory, subject: string, names: readonly string[]): AnabranchError {
  const wanted = names.length === 0 ? 'state' : `state named ${names.map((name) => `"${name}"`).join(' and ')}`;
  return new AnabranchError(
    'CHECKPOINT_NOT_FOUND',
    `In trajectory ${trajectory.id}, ${subject} ${wanted}: use ListSteps with has_state or has_any_state to find checkpoints.`,
    { metadata: { trajectory_id: trajectory.id } },
  );
}
