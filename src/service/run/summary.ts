import { toBinary } from '@bufbuild/protobuf';
import {
  EstimateSchema,
  PassAtSchema,
  type RunService,
  type SummarizeRequest,
  type SummaryDimension,
  SummaryKey,
  SummarySchema,
  type Estimate as WireEstimate,
  type Summary as WireSummary,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { ANSWER_BYTES, LIMITS } from '../../domain/limits.ts';
import {
  type Estimate,
  type FinalRewards,
  finalRewardsOf,
  type SummaryKey as StoreKey,
  type Summary,
  type SummaryRow,
  summaryOf,
  type TrajectorySummaryRow,
} from '../../domain/summary.ts';
import { compareText } from '../../domain/text_order.ts';
import type { SummaryFilter } from '../../store/contract/summary.ts';
import { messageOf } from '../answer/message.ts';
import { fromSeconds, requireDistinct, toInstant, toMap } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { toStageKinds } from '../stage/stage.ts';

interface TrajectoryCounts {
  readonly counts: TrajectorySummaryRow;
  readonly finalRewards: FinalRewards;
  /** In the byte order of names. */
  readonly metricSums: readonly (readonly [string, number])[];
}

/** Counts of the rollouts and trajectories that have the same values. */
interface Combination {
  readonly counts: SummaryRow;
  readonly trajectories: TrajectoryCounts | undefined;
}

/** Maximum number of metric sums of a combination. */
const MAX_SUMS = LIMITS.metrics;

/** Maximum size of the tag and length of a summary. */
const SUMMARY_BYTES = 8;

export const summaryMethods = {
  /** Returns summaries in the order of their values, as many as fit into one response (M3, RD3). */
  async summarize(request, { app, caller }) {
    const by = request.dimensions.map(toKey);
    requireDistinct(by, (key) => [typeof key === 'string' ? key : JSON.stringify(key)], 'dimensions[]');
    const filter = toFilter(request);
    const [rows, trajectoryRows] = await Promise.all([
      app.store.summarize(caller.namespace, filter, by),
      app.store.summarizeTrajectories(caller.namespace, filter, by),
    ]);
    const combinations = combine(rows, trajectoryRows);
    combinations.sort((a, b) => compareValues(a.counts.values, b.counts.values, by));
    const passAt = request.passAt.length === 0 ? [1] : request.passAt;
    const summaries = summariesThatFit(combinations.slice(0, LIMITS.summaries), passAt);
    return { summaries, truncated: summaries.length < combinations.length };
  },
} satisfies SomeMethods<typeof RunService>;

function toFilter(request: SummarizeRequest): SummaryFilter {
  return {
    runs: [...new Set(request.runIds)],
    experimentId: request.experimentId || undefined,
    stageKinds: toStageKinds(request.stageKinds),
    taskIds: request.taskIds,
    runLabels: toMap(request.runLabels),
    labels: toMap(request.labels),
    createTimeFrom: toInstant(request.createTimeFrom),
    createTimeTo: toInstant(request.createTimeTo),
  };
}

function summariesThatFit(combinations: readonly Combination[], passAt: readonly number[]): WireSummary[] {
  const summaries: WireSummary[] = [];
  let left = ANSWER_BYTES;
  for (const combination of combinations) {
    const summary = summaryMessage(combination, summaryOf(combination.counts, passAt));
    left -= SUMMARY_BYTES + toBinary(SummarySchema, summary).length;
    if (left < 0) break;
    summaries.push(summary);
  }
  return summaries;
}

const KEYS: Readonly<Record<number, StoreKey>> = {
  [SummaryKey.TASK]: 'TASK',
  [SummaryKey.RUN]: 'RUN',
  [SummaryKey.STAGE_KIND]: 'STAGE_KIND',
  [SummaryKey.MODEL_URI]: 'MODEL_URI',
  [SummaryKey.NUMBER]: 'NUMBER',
  [SummaryKey.EXPERIMENT]: 'EXPERIMENT',
};

function toKey({ key, label }: SummaryDimension, index: number): StoreKey {
  const known = KEYS[key];
  const field = `dimensions[${index}]`;
  if (known !== undefined) {
    if (label !== '')
      throw invalidField(`${field}.label`, 'must be empty when key is set: a dimension has a key or a label');
    return known;
  }
  if (label === '') throw invalidField(`${field}.key`, 'must be set, or label must be set');
  return { label };
}

/** Combines rows of rollouts and trajectories that have the same values. */
function combine(rows: readonly SummaryRow[], trajectoryRows: readonly TrajectorySummaryRow[]): Combination[] {
  const trajectoriesOf = new Map(trajectoryRows.map((row) => [JSON.stringify(row.values), row]));
  const combinations = rows.map((counts): Combination => {
    const key = JSON.stringify(counts.values);
    const trajectories = trajectoriesOf.get(key);
    trajectoriesOf.delete(key);
    return { counts, trajectories: trajectories && toTrajectoryCounts(trajectories) };
  });
  for (const row of trajectoriesOf.values()) {
    combinations.push({ counts: { ...NO_ROLLOUTS, values: row.values }, trajectories: toTrajectoryCounts(row) });
  }
  return combinations;
}

const NO_ROLLOUTS: SummaryRow = {
  values: [],
  pending: 0n,
  live: 0n,
  completed: 0n,
  failed: 0n,
  cancelled: 0n,
  judged: 0n,
  successes: 0n,
  rewards: { count: 0n, sum: 0, min: 0, max: 0, squares: 0, median: 0 },
  turns: 0n,
  durations: { count: 0n, seconds: 0 },
  queueTimes: { count: 0n, seconds: 0 },
  tokens: { count: 0n, sum: 0 },
  tasks: [],
};

function toTrajectoryCounts(counts: TrajectorySummaryRow): TrajectoryCounts {
  const metricSums = [...counts.metricSums].sort(([one], [other]) => compareText(one, other)).slice(0, MAX_SUMS);
  return { counts, finalRewards: finalRewardsOf(counts.rewards), metricSums };
}

/** Compares numbers by value and other texts by bytes. */
function compareValues(a: readonly string[], b: readonly string[], by: readonly StoreKey[]): number {
  for (const [i, key] of by.entries()) {
    const [one = '', other = ''] = [a[i], b[i]];
    // A trajectory has no number; BigInt('') is 0.
    const order =
      key === 'NUMBER' && one !== other
        ? Number(BigInt(one) - BigInt(other)) || compareText(one, other)
        : compareText(one, other);
    if (order !== 0) return order;
  }
  return 0;
}

function summaryMessage({ counts, trajectories }: Combination, summary: Summary): WireSummary {
  const finalRewards = trajectories?.finalRewards;
  return messageOf(SummarySchema, {
    values: [...counts.values],
    rolloutCount: summary.rollouts,
    pendingCount: counts.pending,
    liveCount: counts.live,
    completedCount: counts.completed,
    failedCount: counts.failed,
    cancelledCount: counts.cancelled,
    finished: summary.finished,
    judgedCount: counts.judged,
    unjudgedCount: summary.unjudged,
    successCount: counts.successes,
    successRate: summary.successRate && fromEstimate(summary.successRate),
    rewardCount: counts.rewards.count,
    rewardMean: summary.rewardMean,
    rewardStd: summary.rewardStd,
    rewardMin: summary.rewardMin,
    rewardMedian: summary.rewardMedian,
    rewardMax: summary.rewardMax,
    meanTurns: summary.meanTurns,
    meanDuration: fromSeconds(summary.meanSeconds),
    meanQueueTime: fromSeconds(summary.meanQueueSeconds),
    tokens: summary.tokens,
    tokensPerSuccess: summary.tokensPerSuccess,
    passAt: summary.passAt.map(({ k, estimate, tasks, groupsExcluded }) =>
      messageOf(PassAtSchema, { k, tasks, groupsExcluded, estimate: estimate && fromEstimate(estimate) }),
    ),
    trajectoryCount: trajectories?.counts.trajectories,
    stepCount: trajectories?.counts.steps,
    metricSums: trajectories && Object.fromEntries(trajectories.metricSums),
    finalRewardMean: finalRewards?.mean,
    finalRewardStd: finalRewards?.std,
    finalRewardMin: finalRewards?.min,
    finalRewardMedian: finalRewards?.median,
    finalRewardMax: finalRewards?.max,
  });
}

function fromEstimate({ value, interval }: Estimate): WireEstimate {
  return messageOf(EstimateSchema, { value, low: interval?.low, high: interval?.high });
}
