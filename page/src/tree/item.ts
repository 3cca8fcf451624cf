import type { TreeNode } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Item } from './rows.ts';

/** Returns a node of a tree as an item of rows and plots. */
export function itemOf({ trajectory, deleted, gain, tags }: TreeNode): Item {
  if (trajectory === undefined) throw new Error('the response of the server has no trajectory');
  const { id, parentId, branchPoint = -1n, nextStepNumber, name, rewardSum: reward, status, metrics } = trajectory;
  const { visits, value } = metrics;
  return {
    id,
    parentId,
    branchPoint: Number(branchPoint),
    end: Number(nextStepNumber),
    name,
    reward,
    gain,
    status,
    deleted,
    tags: tags.map(({ name, stepNumber }) => ({ name, step: Number(stepNumber) })),
    search: visits === undefined || value === undefined ? undefined : { visits, value },
  };
}
