import type { Caller } from '../../domain/caller.ts';
import type { App } from '../app.ts';

export interface CompareArgs {
  readonly trajectoryId: string;
  readonly otherTrajectoryId: string;
  /** First step of the list of rewards. */
  readonly startStepNumber: bigint;
  /** First step after the list; undefined: no list. */
  readonly endStepNumber: bigint | undefined;
}

export interface Comparison {
  readonly sharedSteps: bigint;
  readonly firstDifference: StepDifference | undefined;
  readonly rewardSum: number;
  readonly otherRewardSum: number;
  readonly rewards: readonly RewardPair[];
  readonly nextStepNumber: bigint;
  readonly otherNextStepNumber: bigint;
}

export interface StepDifference {
  readonly stepNumber: bigint;
  /** Path of the field; empty where one trajectory ends. */
  readonly field: string;
  /** The values as JSON text; empty for none. */
  readonly valueJson: string;
  readonly otherValueJson: string;
}

/** The rewards at one number that at least one of the two holds. */
export interface RewardPair {
  readonly stepNumber: bigint;
  readonly reward: number | undefined;
  readonly otherReward: number | undefined;
}

/** RD5. Errors: TRAJECTORY_NOT_FOUND, TRAJECTORY_DELETED. */
export async function compareTrajectories(_app: App, _caller: Caller, _args: CompareArgs): Promise<Comparison> {
  throw new Error('being written');
}
