import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import {
  EstimateSchema,
  PassAtSchema,
  RunService,
  type SummarizeRequest,
  SummarizeResponseSchema,
  type SummaryDimension,
  SummaryKey,
  SummarySchema,
  type Estimate as WireEstimate,
  type Summary as WireSummary,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { type SummarizeArgs, type SummaryShown, summarize, type TrajectoriesShown } from '../app/run/summarize.ts';
import { invalidField } from '../domain/errors.ts';
import type { Estimate } from '../domain/summary.ts';
import { fromSeconds } from '../service/convert/duration.ts';
import { toInstant, toMap } from '../service/convert/values.ts';
import { toStageKinds } from '../service/stage/stage.ts';
import { unary, type Wire } from './call.ts';

const rpc = RunService.method;

export function summaryMethods(wire: Wire): Pick<ServiceImpl<typeof RunService>, 'summarize'> {
  return {
    summarize: unary(wire, rpc.summarize, 'read', async (request, { app, caller }) => {
      const { items, truncated } = await summarize(app, caller, toArgs(request));
      return create(SummarizeResponseSchema, { summaries: items.map(fromSummary), truncated });
    }),
  };
}

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

function fromSummary({ counts, summary, trajectories }: SummaryShown): WireSummary {
  const wire = create(SummarySchema);
  wire.values = [...counts.values];
  wire.rolloutCount = summary.rollouts;
  wire.pendingCount = counts.pending;
  wire.liveCount = counts.live;
  wire.completedCount = counts.completed;
  wire.failedCount = counts.failed;
  wire.cancelledCount = counts.cancelled;
  wire.finished = summary.finished;
  wire.judgedCount = counts.judged;
  wire.unjudgedCount = summary.unjudged;
  wire.successCount = counts.successes;
  if (summary.successRate !== undefined) wire.successRate = fromEstimate(summary.successRate);
  wire.rewardCount = counts.rewards.count;
  wire.passAt = summary.passAt.map(({ k, estimate, tasks, groupsExcluded }) => {
    return create(PassAtSchema, {
      k,
      tasks,
      groupsExcluded,
      ...(estimate === undefined ? {} : { estimate: fromEstimate(estimate) }),
    });
  });
  fillMeans(wire, summary);
  if (trajectories !== undefined) fillTrajectories(wire, trajectories);
  return wire;
}

/** What is absent where there is nothing to take it from. */
function fillMeans(wire: WireSummary, summary: SummaryShown['summary']): void {
  if (summary.rewardMean !== undefined) wire.rewardMean = summary.rewardMean;
  if (summary.rewardStd !== undefined) wire.rewardStd = summary.rewardStd;
  if (summary.rewardMin !== undefined) wire.rewardMin = summary.rewardMin;
  if (summary.rewardMedian !== undefined) wire.rewardMedian = summary.rewardMedian;
  if (summary.rewardMax !== undefined) wire.rewardMax = summary.rewardMax;
  if (summary.meanTurns !== undefined) wire.meanTurns = summary.meanTurns;
  if (summary.meanSeconds !== undefined) wire.meanDuration = fromSeconds(summary.meanSeconds);
  if (summary.meanQueueSeconds !== undefined) wire.meanQueueTime = fromSeconds(summary.meanQueueSeconds);
  if (summary.tokens !== undefined) wire.tokens = summary.tokens;
  if (summary.tokensPerSuccess !== undefined) wire.tokensPerSuccess = summary.tokensPerSuccess;
}

function fillTrajectories(wire: WireSummary, { counts, finalRewards, metricSums }: TrajectoriesShown): void {
  wire.trajectoryCount = counts.trajectories;
  wire.stepCount = counts.steps;
  wire.metricSums = Object.fromEntries(metricSums);
  if (finalRewards.mean !== undefined) wire.finalRewardMean = finalRewards.mean;
  if (finalRewards.std !== undefined) wire.finalRewardStd = finalRewards.std;
  if (finalRewards.min !== undefined) wire.finalRewardMin = finalRewards.min;
  if (finalRewards.median !== undefined) wire.finalRewardMedian = finalRewards.median;
  if (finalRewards.max !== undefined) wire.finalRewardMax = finalRewards.max;
}

function fromEstimate({ value, interval }: Estimate): WireEstimate {
  const wire = create(EstimateSchema, { value });
  if (interval === undefined) return wire;
  wire.low = interval.low;
  wire.high = interval.high;
  return wire;
}
