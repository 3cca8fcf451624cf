import type { Caller } from '../../domain/caller.ts';
import { stepNotFound, trajectoryNotFound } from '../../domain/errors.ts';
import { parseTagName } from '../../domain/ids.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedStep, StepView } from '../../store/contract/step.ts';
import { findTrajectory } from '../../stream/find.ts';
import type { App } from '../app.ts';
import type { StepPlace } from './branch.ts';

export interface GetStepArgs {
  readonly trajectoryId: string;
  readonly at: StepPlace;
  readonly view: StepView;
}

/** An own or an inherited step. Errors: TRAJECTORY_NOT_FOUND, STEP_NOT_FOUND, TAG_NOT_FOUND. */
export async function getStep(app: App, caller: Caller, args: GetStepArgs): Promise<OwnedStep> {
  const trajectory = await findTrajectory(app, caller, args.trajectoryId);
  return stepAt(app, caller, trajectory, await resolvePlace(app, caller, trajectory, args.at), args.view);
}

/** The number that a place means. Errors: TAG_NOT_FOUND. */
export async function resolvePlace(app: App, caller: Caller, trajectory: Trajectory, at: StepPlace): Promise<bigint> {
  if (!('tag' in at)) return at.stepNumber;
  const tag = await app.store.getTag(caller.namespace, trajectory.id, parseTagName(at.tag, 'tag'));
  return tag.stepNumber;
}

/** The step of a number. Errors: STEP_NOT_FOUND, TRAJECTORY_NOT_FOUND (it was deleted meanwhile: its steps are there as long as it lives). */
export async function stepAt(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  stepNumber: bigint,
  view: StepView,
): Promise<OwnedStep> {
  const end = trajectory.nextStepNumber;
  if (stepNumber < 0n || stepNumber >= end) throw stepNotFound(trajectory.id, stepNumber, end);
  const segments = await app.lineages.segments(app.store, caller.namespace, trajectory, stepNumber, stepNumber + 1n);
  const range = { from: stepNumber, to: stepNumber + 1n, maxSteps: 1, maxBytes: 1 };
  const [found] = await app.store.readSteps(caller.namespace, trajectory.ref.tree, segments, range, view);
  if (found === undefined) throw trajectoryNotFound(trajectory.id);
  return found;
}
