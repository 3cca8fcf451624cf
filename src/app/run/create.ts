import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { requireConfig } from '../../domain/json.ts';
import type { InitialStatus } from '../../domain/lifecycle.ts';
import { DEFAULT_EXPERIMENT, type Plan, type Stage } from '../../domain/run.ts';
import { ROOT_CONFIG, requireRemovedPaths } from '../../domain/run_config.ts';
import type { NewSteps } from '../../domain/step.ts';
import type { IdempotencyKey } from '../../store/contract/idempotency.ts';
import type { MadeRun, NewMainTrajectory, NewRun } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { placeOfExperiment, requirePlan } from './fields.ts';

/** What a root and a branch are given alike. */
export interface RunMakingArgs {
  readonly key: IdempotencyKey | undefined;
  /** Empty: `run-NUMBER`. */
  readonly name: string;
  readonly description: string;
  /** A JSON object, or empty: its own config, or its overrides. */
  readonly configJson: string;
  /** JSON Pointers to keys of the config that it starts from: the experiment's default, or the parent's effective config. */
  readonly removedConfigPaths: readonly string[];
  readonly labels: ReadonlyMap<string, string>;
  readonly metadataJson: string;
  readonly plan: Plan | undefined;
  readonly status: InitialStatus;
  readonly heartbeatTimeoutMs: number | undefined;
  readonly failWhenStale: boolean;
}

export interface CreateRunArgs extends RunMakingArgs {
  /** Empty: the server makes one. */
  readonly runId: string;
  /** At most one of the two; none: `default`. */
  readonly experimentId: string;
  readonly experimentName: string;
  /** The run that has the name is the answer, if there is one. */
  readonly ifExists: 'FAIL' | 'RETURN_EXISTING';
  /** Undefined: it has none. */
  readonly mainTrajectory: MainTrajectoryArgs | undefined;
}

export interface MainTrajectoryArgs {
  /** Empty: the server makes one. */
  readonly trajectoryId: string;
  readonly taskId: string;
  /** Step 0, in the same transaction. */
  readonly root: NewSteps | undefined;
}

export interface CreatedRun extends MadeRun {
  /** C-33: where to go on; undefined: from the start. */
  readonly resumeStage: Stage | undefined;
}

/**
 * Errors: EXPERIMENT_NOT_FOUND, RUN_EXISTS, CONFIG_MISMATCH, REQUEST_ID_REUSED, RUN_NOT_FOUND, TRAJECTORY_EXISTS, STATE_NOT_FOUND,
 * DIGEST_MISMATCH.
 */
export async function createRun(app: App, caller: Caller, args: CreateRunArgs): Promise<CreatedRun> {
  const making = runMakingOf(args, ROOT_CONFIG.own);
  const returnExisting = args.ifExists === 'RETURN_EXISTING';
  if (returnExisting && args.name === '') {
    throw invalidField('name', 'must be set when if_exists is RETURN_EXISTING: a run is found by its name');
  }
  const place = placeOfExperiment(args.experimentId, args.experimentName);
  const main = mainTrajectoryOf(app, args.mainTrajectory);
  const made = await app.store.createRun(
    caller,
    {
      ...making,
      id: args.runId || app.ids.uuid(),
      // The experiment of runs that name none is made where it is missing, also for those that do name it.
      experiment: args.experimentName === DEFAULT_EXPERIMENT ? undefined : place,
      defaultExperimentId: app.ids.uuid(),
      returnExisting,
      mainTrajectory: main,
    },
    args.key,
  );
  // One that was made just now has no stages yet.
  const resumeStage = made.created
    ? undefined
    : await app.store.getLatestCheckpointedStage(caller.namespace, made.run.id, 'TRAIN_STEP');
  return { ...made, resumeStage };
}

function mainTrajectoryOf(app: App, args: MainTrajectoryArgs | undefined): NewMainTrajectory | undefined {
  if (args === undefined) return undefined;
  const { root } = args;
  return {
    id: args.trajectoryId || app.ids.uuid(),
    uid: app.ids.uid(),
    taskId: args.taskId,
    root: root?.steps[0],
    states: root?.states ?? [],
  };
}

type RunMaking = Omit<NewRun, 'id' | 'experiment' | 'defaultExperimentId' | 'returnExisting' | 'mainTrajectory'>;

/** The common part of a new run, checked. */
export function runMakingOf(args: RunMakingArgs, configField: string): RunMaking {
  const { heartbeatTimeoutMs, failWhenStale, status } = args;
  return {
    name: args.name,
    description: args.description,
    configJson: requireConfig(args.configJson, configField),
    removedConfigPaths: requireRemovedPaths(args.removedConfigPaths),
    labels: args.labels,
    metadataJson: args.metadataJson,
    plan: requirePlan(args.plan),
    status,
    heartbeatTimeoutMs,
    failWhenStale,
  };
}
