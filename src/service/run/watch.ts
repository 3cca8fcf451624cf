import type { RunService, WatchRunResponse } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { WatchedSeriesSchema, WatchRunResponseSchema } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { type RunShown, watchRun as watchRunOf } from '../../stream/runs/watch.ts';
import { messageOf } from '../answer/message.ts';
import { groupMessage } from '../group/group.ts';
import type { ServerStream } from '../method.ts';
import { fromRollout } from '../rollout/messages.ts';
import { stageMessage } from '../stage/stage.ts';
import { fromProgress, fromRun } from './messages.ts';

/** Watches a run (M5). */
export const watchRun: ServerStream<typeof RunService.method.watchRun> = {
  async *messages({ runId, allStages, untilTerminal, rollouts, series }, { app, caller, signal }) {
    const args = { runId, allStages, untilTerminal, rollouts, series, signal };
    for await (const shown of watchRunOf(app, caller, args)) yield fromRunShown(shown);
  },
};

function fromRunShown({ run, stages, groups, rollouts, series, progress, caughtUp }: RunShown): WatchRunResponse {
  return messageOf(WatchRunResponseSchema, {
    run: run && fromRun(run, 'BASIC'),
    stages: stages.map((stage) => stageMessage(stage, 'BASIC')),
    groups: groups.map((group) => groupMessage(group, 'BASIC')),
    rollouts: rollouts.map((rollout) => fromRollout(rollout, 'BASIC')),
    series: series.map(({ stageId, name, points, lastStep, lastValue, changedFrom }) =>
      messageOf(WatchedSeriesSchema, {
        stageId,
        key: name,
        pointCount: points,
        lastMetricStep: lastStep,
        lastValue,
        changedFrom,
      }),
    ),
    progress: progress && fromProgress(progress),
    caughtUp,
  });
}
