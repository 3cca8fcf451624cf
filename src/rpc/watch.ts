import { create } from '@bufbuild/protobuf';
import type { MethodImpl } from '@connectrpc/connect';
import { RunService, type WatchRunResponse, WatchRunResponseSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { groupMessage } from '../service/group/group.ts';
import { fromRollout } from '../service/rollout/messages.ts';
import { fromProgress, fromRun } from '../service/run/messages.ts';
import { stageMessage } from '../service/stage/stage.ts';
import { type RunShown, watchRun as watchRunOf } from '../stream/runs/watch.ts';
import { serverStream, type Wire } from './call.ts';

export function watchRun(wire: Wire): MethodImpl<typeof RunService.method.watchRun> {
  return serverStream(wire, RunService.method.watchRun, async function* (request, { app, caller, signal }) {
    const { runId, allStages, untilTerminal, rollouts } = request;
    const watching = watchRunOf(app, caller, { runId, allStages, untilTerminal, rollouts, signal });
    for await (const shown of watching) yield fromRunShown(shown);
  });
}

function fromRunShown({ run, stages, groups, rollouts, progress, caughtUp }: RunShown): WatchRunResponse {
  const answer = create(WatchRunResponseSchema);
  if (run !== undefined) answer.run = fromRun(run, 'BASIC');
  answer.stages = stages.map((stage) => stageMessage(stage, 'BASIC'));
  answer.groups = groups.map((group) => groupMessage(group, 'BASIC'));
  answer.rollouts = rollouts.map((rollout) => fromRollout(rollout, 'BASIC'));
  if (progress !== undefined) answer.progress = fromProgress(progress);
  answer.caughtUp = caughtUp;
  return answer;
}
