import { addOwnReward, addReward, type NewStep } from '../../../domain/step.ts';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { STEPS } from '../tables/steps.ts';
import type { RowOf } from '../tables/table.ts';
import { bindClientTime, bindDigest, bindMetrics, bindOptionalReal, bindReal, flag } from '../values.ts';
import { bindActions, bindObservations, type StateSizes } from './content_json.ts';

/** Running sums at a step: along the lineage, but for `branchRewardSum`. */
export interface Sums {
  readonly rewardSum: number;
  /** Of own steps alone. Undefined while none of them has a reward that counts. */
  readonly branchRewardSum: number | undefined;
  readonly byteSum: bigint;
}

/** A row's fixed columns, roughly; what counts is that a step is never free. */
const ROW_BYTES = 128;

/** A row of `steps`, and the sums after it. */
export interface StepRow {
  readonly row: RowOf<typeof STEPS>;
  readonly sums: Sums;
}

/** The trajectory that a step is appended to. */
export interface StepOwner extends TrajectoryRef {
  readonly namespace: string;
  readonly writerEpoch: bigint;
}

export function stepRow(owner: StepOwner, before: Sums, step: NewStep, sizes: StateSizes, commitTime: string): StepRow {
  const actions = bindActions(step.actions, sizes);
  const observations = bindObservations(step.observations, sizes);
  const metrics = bindMetrics(step.metrics);
  const rewardSum = addReward(before.rewardSum, step.reward);
  const branchRewardSum = addOwnReward(before.branchRewardSum, step.reward);
  const byteSum =
    before.byteSum +
    BigInt(
      ROW_BYTES +
        Buffer.byteLength(actions) +
        Buffer.byteLength(observations) +
        Buffer.byteLength(metrics) +
        Buffer.byteLength(step.infoJson) +
        Buffer.byteLength(step.metadataJson),
    );
  const row = {
    tree: owner.tree,
    trajectory: owner.key,
    step_number: step.stepNumber,
    namespace: owner.namespace,
    reward: bindOptionalReal(step.reward),
    terminated: flag(step.terminated),
    truncated: flag(step.truncated),
    writer_epoch: owner.writerEpoch,
    reward_sum: bindReal(rewardSum),
    byte_sum: byteSum,
    commit_time: commitTime,
    start_time: bindClientTime(step.startTime),
    end_time: bindClientTime(step.endTime),
    content_digest: bindDigest(step.contentDigest),
    metrics,
    actions,
    observations,
    info_json: step.infoJson,
    metadata_json: step.metadataJson,
  };
  return { row, sums: { rewardSum, branchRewardSum, byteSum } };
}
