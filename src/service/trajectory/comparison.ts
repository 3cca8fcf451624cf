import { create } from '@bufbuild/protobuf';
import {
  type CompareTrajectoriesResponse,
  CompareTrajectoriesResponseSchema,
  RewardPairSchema,
  StepDifferenceSchema,
  type RewardPair as WirePair,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Comparison, RewardPair } from '../../app/trajectory/compare.ts';

export function fromComparison(comparison: Comparison): CompareTrajectoriesResponse {
  const wire = create(CompareTrajectoriesResponseSchema);
  wire.sharedSteps = comparison.sharedSteps;
  if (comparison.firstDifference !== undefined) {
    wire.firstDifference = create(StepDifferenceSchema, comparison.firstDifference);
  }
  wire.rewardSum = comparison.rewardSum;
  wire.otherRewardSum = comparison.otherRewardSum;
  wire.rewardDifference = comparison.rewardDifference;
  wire.rewards = comparison.rewards.map(fromRewardPair);
  wire.nextStepNumber = comparison.nextStepNumber;
  wire.otherNextStepNumber = comparison.otherNextStepNumber;
  return wire;
}

function fromRewardPair({ stepNumber, reward, otherReward }: RewardPair): WirePair {
  const wire = create(RewardPairSchema);
  wire.stepNumber = stepNumber;
  if (reward !== undefined) wire.reward = reward;
  if (otherReward !== undefined) wire.otherReward = otherReward;
  if (reward !== undefined && otherReward !== undefined) wire.difference = otherReward - reward;
  return wire;
}
