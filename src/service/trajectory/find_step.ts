import type { Caller } from '../../domain/caller.ts';
import { stepNotFound, trajectoryNotFound } from '../../domain/errors.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedStep, StepView } from '../../store/contract/step.ts';
import type { App } from '../../stream/app.ts';
import type { StepReference } from '../convert/step_reference.ts';

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
