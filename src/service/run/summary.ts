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
import { type SummarizeArgs, type SummaryShown, summarize } from '../../app/run/summarize.ts';
import { invalidField } from '../../domain/errors.ts';
import type { Estimate } from '../../domain/summary.ts';
import { messageOf } from '../answer/message.ts';
import { fromSeconds } from '../convert/duration.ts';
import { toInstant, toMap } from '../convert/values.ts';
import type { Methods } from '../method.ts';
import { toStageKinds } from '../stage/stage.ts';

export const summaryMethods: Methods<typeof RunService, 'summarize'> = {
  async summarize(request, { app, caller }) {
    const { items, truncated } = await summarize(app, caller, toArgs(request));
    return { summaries: items.map(summaryMessage), truncated };
  },
};

function toArgs(request: SummarizeRequest): SummarizeArgs {
  const { runIds, experimentId, taskIds, passAt } = request;
  return {
    filter: {
      runs: runIds,
      experimentId: experimentId === '' ? undefined : experimentId,
      stageKinds: toStageKinds(request.stageKinds),
      taskIds,
      runLabels: toMap(request.runLabels),
      labels: toMap(request.labels),
      createTimeFrom: toInstant(request.createTimeFrom),
      createTimeTo: toInstant(request.createTimeTo),
    },
    by: request.dimensions.map(toKey),
    passAt: passAt.length === 0 ? [1] : passAt,
  };
}

const KEYS: Readonly<Record<number, SummarizeArgs['by'][number]>> = {
  [SummaryKey.TASK]: 'TASK',
  [SummaryKey.RUN]: 'RUN',
  [SummaryKey.STAGE_KIND]: 'STAGE_KIND',
  [SummaryKey.MODEL_URI]: 'MODEL_URI',
  [SummaryKey.NUMBER]: 'NUMBER',
  [SummaryKey.EXPERIMENT]: 'EXPERIMENT',
};

function toKey({ key, label }: SummaryDimension, index: number): SummarizeArgs['by'][number] {
  const known = KEYS[key];
  const field = `dimensions[${index}]`;
  if (known !== undefined) {
    if (label !== '') throw invalidField(`${field}.label`, 'must be empty when key is set: a dimension is one of them');
    return known;
  }
  if (label === '') throw invalidField(`${field}.key`, 'must be set, or label');
  return { label };
}

function summaryMessage({ counts, summary, trajectories }: SummaryShown): WireSummary {
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
    meanDuration: toDuration(summary.meanSeconds),
    meanQueueTime: toDuration(summary.meanQueueSeconds),
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

function toDuration(seconds: number | undefined) {
  return seconds === undefined ? undefined : fromSeconds(seconds);
}

function fromEstimate({ value, interval }: Estimate): WireEstimate {
  return messageOf(EstimateSchema, { value, low: interval?.low, high: interval?.high });
}
