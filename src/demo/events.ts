import type { CompareTrajectoriesResponse } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';

/** What happens in the demo, as it happens: for a display, or for a script. */
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
      /** What its client had made, what it knew to be durable, and what the store turned out to hold. */
      readonly madeNextStepNumber: bigint;
      readonly ackedNextStepNumber: bigint;
      readonly storedNextStepNumber: bigint;
    }
  | { readonly event: 'resumed'; readonly name: string; readonly pid: number; readonly nextStepNumber: bigint }
  | {
      readonly event: 'replayed';
      readonly name: string;
      readonly fromStepNumber: bigint;
      /** How many observations, actions and states were the same to the last bit: all of them. */
      readonly identicalSteps: number;
    }
  | { readonly event: 'compared'; readonly name: string; readonly comparison: CompareTrajectoriesResponse };

/** What happens in the demo's training, as it happens. */
export type TrainingEvent =
  | { readonly event: 'run'; readonly name: string; readonly runId: string; readonly experimentName: string }
  | {
      readonly event: 'progress';
      /** The run's. */
      readonly name: string;
      readonly percent: number;
      /** How long it still takes; absent where that cannot be told. */
      readonly remainingSeconds?: number;
      readonly turnsDone: bigint;
      readonly turnsExpected: bigint;
      readonly rolloutsDone: bigint;
      readonly rolloutsExpected: bigint;
      readonly stages: readonly { readonly name: string; readonly percent: number }[];
    }
  /** A process has begun to claim rollouts. */
  | { readonly event: 'worker'; readonly name: string; readonly pid: number }
  | {
      readonly event: 'worker_killed';
      readonly name: string;
      readonly pid: number;
      readonly rolloutId: string;
      /** Turns of the rollout that it had taken. */
      readonly turns: number;
    }
  /** Another worker has the rollout whose worker was killed. */
  | { readonly event: 'claimed_again'; readonly name: string; readonly rolloutId: string; readonly attempt: number }
  /** A stage is complete, and the trainer has read it. */
  | {
      readonly event: 'stage';
      readonly name: string;
      readonly rewardMean: number;
      /** How often the policy that was played had been improved. */
      readonly version: number;
    };

export interface DemoTrajectory {
  readonly name: string;
  readonly trajectoryId: string;
}

/** What there is to look at afterwards. */
export interface DemoResult {
  readonly main: DemoTrajectory;
  readonly variants: readonly DemoTrajectory[];
}
