import { toBinary } from '@bufbuild/protobuf';
import { type Step, StepSchema } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { Seal } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { SealRequest } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import { invalidField, stepNotFound, trajectoryNotFound } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { NewSteps } from '../../domain/step_codec/packed_step.ts';
import { SIZE_BYTES } from '../../domain/step_codec/pass.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedStep, StepView } from '../../store/contract/step.ts';
import type { NewTrajectory } from '../../store/contract/trajectory.ts';
import type { App } from '../../stream/app.ts';
import { type StepReference, toSealStatus } from '../convert/values.ts';
import { SUSPECT, screenStep } from './screen.ts';
import { toOneStep } from './step_in.ts';

/** Converts the only step of a checked request, with its inline states. Errors: INVALID_REQUEST. */
export function toSingleStep(step: Step, field: string): NewSteps {
  requireStepSize(step, field);
  return toOneStep(step, field);
}

/** Converts the root of a new trajectory, with its inline states. Errors: INVALID_REQUEST. */
export function toRoot(root: Step | undefined, field: string): Pick<NewTrajectory, 'root' | 'states'> {
  if (root === undefined) return { root: undefined, states: [] };
  if (root.stepNumber !== 0n) {
    throw invalidField(`${field}.step_number`, `must be 0, since the root is step 0, not ${root.stepNumber}`);
  }
  const { steps, states } = toSingleStep(root, field);
  return { root: steps[0], states };
}

export function toSeal(seal: Seal, field: string): SealRequest {
  return { status: toSealStatus(seal.status, `${field}.status`), message: seal.message };
}

/** W3: requires that a step fits into one message when it is read. Errors: INVALID_REQUEST. */
export function requireStepSize(step: Step, field: string): void {
  const estimate = screenStep(step);
  if (estimate !== SUSPECT && estimate <= LIMITS.stepBytes) return;
  const bytes = toBinary(StepSchema, step).length + SIZE_BYTES * referredStates(step);
  if (bytes > LIMITS.stepBytes) {
    throw invalidField(
      field,
      `must have at most ${LIMITS.stepBytes} bytes, not ${bytes} bytes: store large states and contents with PutState first, and send their digests`,
    );
  }
}

function referredStates({ actions, observations }: Step): number {
  let count = 0;
  for (const { content } of actions) if (content?.stateDigest !== undefined) count += 1;
  for (const { content } of observations) if (content?.stateDigest !== undefined) count += 1;
  return count;
}

/**
 * Returns an own or inherited step by number or tag. Errors: STEP_NOT_FOUND, TAG_NOT_FOUND, and TRAJECTORY_NOT_FOUND if
 * the trajectory was deleted meanwhile.
 */
export async function stepAt(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  at: StepReference,
  view: StepView,
): Promise<OwnedStep> {
  const { namespace } = caller;
  const { stepNumber } = 'tag' in at ? await app.store.getTag(namespace, trajectory.id, at.tag) : at;
  const end = trajectory.nextStepNumber;
  if (stepNumber < 0n || stepNumber >= end) throw stepNotFound(trajectory.id, stepNumber, end);
  const lineage = await app.lineages.within(app.store, namespace, trajectory, stepNumber, stepNumber + 1n);
  const range = { from: stepNumber, to: stepNumber + 1n, maxSteps: 1, maxBytes: 1 };
  const [found] = await app.store.readSteps(namespace, trajectory.ref.tree, lineage, range, view);
  if (found === undefined) throw trajectoryNotFound(trajectory.id);
  return found;
}
