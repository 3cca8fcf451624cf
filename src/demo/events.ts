import type { CompareTrajectoriesResponse } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';

/** Events of the demo, for a display or a script. */
export type DemoEvent =
  | {
      readonly event: 'trajectory';
      readonly name: string;
      readonly trajectoryId: string;
      /** 0 for the main line, else the first step of the branch. */
      readonly firstStepNumber: bigint;
    }
  | { readonly event: 'step'; readonly name: string; readonly stepNumber: bigint }
  | { readonly event: 'sealed'; readonly name: string; readonly nextStepNumber: bigint; readonly message: string }
  /** A process of its own plays the variant. */
  | { readonly event: 'started'; readonly name: string; readonly pid: number }
  | {
      readonly event: 'killed';
      readonly name: string;
      readonly pid: number;
      /** End of the steps that the client had appended, that it knew to be durable, and that the store contains. */
      readonly madeNextStepNumber: bigint;
      readonly ackedNextStepNumber: bigint;
      readonly storedNextStepNumber: bigint;
    }
  | { readonly event: 'resumed'; readonly name: string; readonly pid: number; readonly nextStepNumber: bigint }
  | {
      readonly event: 'replayed';
      readonly name: string;
      readonly fromStepNumber: bigint;
      /** Number of observations, actions and states that were identical bit for bit: all of them. */
      readonly identicalSteps: number;
    }
  | { readonly event: 'compared'; readonly name: string; readonly comparison: CompareTrajectoriesResponse };

/** Events of the demo's training. */
export type TrainingEvent =
  | { readonly event: 'run'; readonly name: string; readonly runId: string; readonly experimentName: string }
  | {
      readonly event: 'progress';
      /** Name of the run. */
      readonly name: string;
      readonly percent: number;
      /** Remaining time. Unset if it cannot be estimated. */
      readonly remainingSeconds?: number;
      readonly turnsDone: bigint;
      readonly turnsExpected: bigint;
      readonly rolloutsDone: bigint;
      readonly rolloutsExpected: bigint;
      readonly stages: readonly { readonly name: string; readonly percent: number }[];
    }
  /** A process begins to claim rollouts. */
  | { readonly event: 'worker'; readonly name: string; readonly pid: number }
  | {
      readonly event: 'worker_killed';
      readonly name: string;
      readonly pid: number;
      readonly rolloutId: string;
      /** Turns of the rollout that the worker had played. */
      readonly turns: number;
    }
  /** Another worker claimed the rollout whose worker was killed. */
  | { readonly event: 'claimed_again'; readonly name: string; readonly rolloutId: string; readonly attempt: number }
  /** A stage is complete, and the trainer has read it. */
  | {
      readonly event: 'stage';
      readonly name: string;
      readonly rewardMean: number;
      /** Number of improvements of the policy that was played. */
      readonly version: number;
    };

export interface DemoTrajectory {
  readonly name: string;
  readonly trajectoryId: string;
}

/** Ids of what the demo created. */
export interface DemoResult {
  readonly main: DemoTrajectory;
  readonly variants: readonly DemoTrajectory[];
}
