import type { Caller } from '../../domain/caller.ts';
import type { NewSteps } from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { IdempotencyKey } from '../../store/contract/idempotency.ts';
import type { TrajectoryMaking } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';

export interface CreateTrajectoryArgs extends MakingArgs {
  /** Empty: the server makes one. */
  readonly trajectoryId: string;
  readonly taskId: string;
  /** What it is to belong to; empty: nothing. With a run the experiment, if given, must be the run's. */
  readonly runId: string;
  readonly experimentId: string;
  /** Step 0, in the same transaction. */
  readonly root: NewSteps | undefined;
}

/** What a root and a branch are given alike. */
export interface MakingArgs {
  readonly key: IdempotencyKey | undefined;
  readonly name: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly metadataJson: string;
}

/** Errors: TRAJECTORY_EXISTS, REQUEST_ID_REUSED, TRAJECTORY_NOT_FOUND, STATE_NOT_FOUND, DIGEST_MISMATCH, RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
export async function createTrajectory(app: App, caller: Caller, args: CreateTrajectoryArgs): Promise<Trajectory> {
  const making = makingOf(app, args, args.trajectoryId);
  const { taskId, root } = args;
  const runId = args.runId || undefined;
  const experimentId = args.experimentId || undefined;
  return app.store.createTrajectory(
    caller,
    { ...making, taskId, runId, experimentId, root: root?.steps[0], states: root?.states ?? [] },
    args.key,
  );
}

/** The common part of a new row, checked, with an id and a uid of its own. */
export function makingOf(app: App, args: MakingArgs, id: string): TrajectoryMaking {
  return {
    id: id || app.ids.uuid(),
    uid: app.ids.uid(),
    name: args.name,
    labels: args.labels,
    metadataJson: args.metadataJson,
  };
}
