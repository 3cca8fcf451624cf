/** Converts trajectories and runs to lines of a tree. */
import type { Run } from '../../gen/es/anabranch/v1/run_pb.js';
import type { TreeNode } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { runStatus, statusName } from './status.ts';
import type { TreeItem } from './tree_drawing.ts';

/** Converts trajectories. A deleted trajectory whose steps are still needed is marked as deleted. */
export function trajectoryItems(nodes: readonly TreeNode[]): TreeItem[] {
  return nodes.flatMap(({ trajectory, deleted }) => {
    if (trajectory === undefined) return [];
    const { id, parentId, branchPoint, name, nextStepNumber: steps, rewardSum, status } = trajectory;
    const reward = deleted ? undefined : rewardSum;
    return [{ id, parentId, branchPoint, name, steps, reward, status: deleted ? 'deleted' : statusName(status) }];
  });
}

export function runItems(runs: readonly Run[]): TreeItem[] {
  return runs.map((run) => {
    const { id, parentId, branchPoint, name, nextStepNumber: steps, rewardSum: reward } = run;
    return { id, parentId, branchPoint, name, steps, reward, status: runStatus(run) };
  });
}
