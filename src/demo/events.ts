import type { CompareTrajectoriesResponse } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient } from '../client/index.ts';

interface Events {
  /** `firstStepNumber` is 0 for the main line, else the first step of the branch. */
  trajectory: { readonly trajectoryId: string; readonly firstStepNumber: bigint };
  step: { readonly stepNumber: bigint };
  sealed: { readonly nextStepNumber: bigint; readonly message: string };
  /** A process of its own plays the variant. */
  started: { readonly pid: number };
  /** The ends of the steps that the process had appended, that it knew to be durable, and that the store contains. */
  killed: {
    readonly pid: number;
    readonly madeNextStepNumber: bigint;
    readonly ackedNextStepNumber: bigint;
    readonly storedNextStepNumber: bigint;
  };
  resumed: { readonly pid: number; readonly nextStepNumber: bigint };
  /** The observations, actions and states of these steps were identical bit for bit: those of all steps. */
  replayed: { readonly fromStepNumber: bigint; readonly identicalSteps: number };
  compared: { readonly comparison: CompareTrajectoriesResponse };
  run: { readonly runId: string; readonly experimentName: string };
  /** `remainingSeconds` is unset if it cannot be estimated. */
  progress: {
    readonly percent: number;
    readonly remainingSeconds: number | undefined;
    readonly rolloutsDone: bigint;
    readonly rolloutsExpected: bigint;
    readonly stages: readonly { readonly name: string; readonly percent: number }[];
  };
  /** A process begins to claim rollouts. */
  worker: { readonly pid: number };
  worker_killed: { readonly pid: number; readonly rolloutId: string; readonly turns: number };
  /** Another worker claimed the rollout whose worker was killed. */
  claimed_again: { readonly rolloutId: string; readonly attempt: number };
  /** The trainer has read a stage. `version` is the number of improvements of the policy that was played. */
  stage: { readonly rewardMean: number; readonly version: number };
}

/** An event of the demo, for a display or a script. `name` is that of a trajectory, a run, a worker or a stage. */
export type DemoEvent<E extends keyof Events = keyof Events> = {
  readonly [K in E]: { readonly event: K; readonly name: string } & Events[K];
}[E];

export interface DemoOptions {
  readonly client: AnabranchClient;
  /** 0 to 2^32 - 1. The same seed gives the same steps. */
  readonly seed: number;
  /** Program and arguments that start a client in a process of its own. Its task is appended as the last argument. */
  readonly clientCommand: readonly string[];
  readonly onEvent: (event: DemoEvent) => void;
  readonly signal: AbortSignal;
}

/** Does all work concurrently. The first failure stops the rest, and is thrown when everything has ended. */
export async function together<T>(
  options: DemoOptions,
  works: readonly ((options: DemoOptions) => Promise<T>)[],
): Promise<T[]> {
  const failure = new AbortController();
  const around = { ...options, signal: AbortSignal.any([options.signal, failure.signal]) };
  const working = works.map(async (work) => {
    try {
      return await work(around);
    } catch (error) {
      failure.abort(error);
      throw error;
    }
  });
  await Promise.allSettled(working);
  failure.signal.throwIfAborted();
  return Promise.all(working);
}

/** Returns a resource that a response of the server always has. */
export function present<T>(value: T | undefined): T {
  if (value === undefined) throw new Error('the response of the server lacks what was asked for');
  return value;
}
