import { addOwnReward, addReward, type NewStep } from '../../../domain/step.ts';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import { bindClientTime, bindDigest, bindMetrics, bindOptionalReal, bindReal, flag } from '../values.ts';
import { bindActions, bindObservations, type StateSizes } from './content_json.ts';

/** Running sums at a step: along the lineage, but for `branchRewardSum`. */
export interface Sums {
  readonly rewardSum: number;
  /** Of own steps alone. Undefined while none of them has a reward that counts. */
  readonly branchRewardSum: number | undefined;
  readonly byteSum: bigint;
}

export const STEP_COLUMNS = [
  'tree',
  'trajectory',
  'step_number',
  'namespace',
  'reward',
  'terminated',
  'truncated',
  'writer_epoch',
  'reward_sum',
  'byte_sum',
  'commit_time',
  'start_time',
  'end_time',
  'content_digest',
  'metrics',
  'actions',
  'observations',
  'info_json',
  'metadata_json',
] as const;

/** A row's fixed columns, roughly; what counts is that a step is never free. */
const ROW_BYTES = 128;

/** A row of `steps`, and the sums after it. */
export interface StepRow {
  /** In the order of `STEP_COLUMNS`. */
  readonly values: unknown[];
  readonly sums: Sums;
}

export function stepRow(
  namespace: string,
  ref: TrajectoryRef,
  writerEpoch: bigint,
  before: Sums,
  step: NewStep,
  sizes: StateSizes,
  commitTime: string | null,
): StepRow {
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
  const values = [
    ref.tree,
    ref.key,
    step.stepNumber,
    namespace,
    bindOptionalReal(step.reward),
    flag(step.terminated),
    flag(step.truncated),
    writerEpoch,
    bindReal(rewardSum),
    byteSum,
    commitTime,
    bindClientTime(step.startTime),
    bindClientTime(step.endTime),
    bindDigest(step.contentDigest),
    metrics,
    actions,
    observations,
    step.infoJson,
    step.metadataJson,
  ];
  return { values, sums: { rewardSum, branchRewardSum, byteSum } };
}
