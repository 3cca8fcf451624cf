import type { App } from '../../app/app.ts';
import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, invalidField } from '../../domain/errors.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedStep } from '../../store/contract/step.ts';
import { serverDraining } from '../drain.ts';
import { findTrajectory } from '../find.ts';
import { followSteps } from './follow.ts';
import { byOwner, readPage } from './step_page.ts';
import type { ReadStepsArgs, StepsRead } from './steps_read.ts';

/**
 * RD1, RD2: steps [start, end) in order, across branch points; with `follow` goes on as steps are committed. Nothing is read ahead of what was
 * taken, but for one page. Errors: TRAJECTORY_NOT_FOUND, RANGE_BEYOND_END, TRAJECTORY_DELETED, SERVER_DRAINING.
 */
export async function* readSteps(
  app: App,
  caller: Caller,
  args: ReadStepsArgs,
): AsyncGenerator<StepsRead, void, undefined> {
  requireRange(args.startStepNumber, args.endStepNumber);
  const trajectory = await findTrajectory(app, caller, args.trajectoryId);
  requireStart(args.startStepNumber, trajectory);
  if (args.follow) yield* followSteps(app, caller, trajectory, args);
  else yield* readRange(app, caller, trajectory, args);
}

export function requireRange(start: bigint, end: bigint | undefined): void {
  if (start < 0n) throw invalidField('start_step_number', `must be at least 0, not ${start}`);
  if (end !== undefined && end < start) {
    throw invalidField('end_step_number', `must be at least start_step_number, which is ${start}, not ${end}`);
  }
}

/** RD1: the end itself is allowed, since there is merely nothing to read. */
export function requireStart(start: bigint, { id, nextStepNumber }: Trajectory): void {
  if (start <= nextStepNumber) return;
  throw new AnabranchError(
    'RANGE_BEYOND_END',
    `start_step_number is ${start}, but trajectory ${id} ends at ${nextStepNumber}: start there or before.`,
    { metadata: { next_step_number: `${nextStepNumber}` } },
  );
}

/** Steps of a trajectory whose row was read just now, up to the end that it knows. Errors: TRAJECTORY_DELETED, SERVER_DRAINING. */
export async function* readRange(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  args: Pick<ReadStepsArgs, 'startStepNumber' | 'endStepNumber' | 'view'>,
): AsyncGenerator<StepsRead, void, undefined> {
  const last = trajectory.nextStepNumber;
  const end = args.endStepNumber === undefined || args.endStepNumber > last ? last : args.endStepNumber;
  const fetch = (from: bigint): Promise<OwnedStep[]> => {
    const page = readPage(app, caller.namespace, trajectory, from, end, args.view);
    page.catch(() => undefined); // thrown where it is awaited; nobody awaits it when the reader leaves before
    return page;
  };
  let next = args.startStepNumber;
  let ahead = next < end ? fetch(next) : undefined;
  while (ahead !== undefined) {
    const page: OwnedStep[] = await ahead;
    const begin = next;
    next += BigInt(page.length);
    // The next page is on its way while this one is being sent.
    ahead = next < end ? fetch(next) : undefined;
    let at = begin;
    for (const { trajectoryId, steps } of byOwner(page)) {
      if (app.drain.begun) throw serverDraining();
      at += BigInt(steps.length);
      yield { trajectoryId, steps, nextStepNumber: at, caughtUp: false, sealed: false };
    }
  }
}
