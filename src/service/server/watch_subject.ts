import { create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  type ListRunsRequest,
  ListRunsResponseSchema,
  type RunWithProgress,
  RunWithProgressSchema,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import {
  RunChangesSchema,
  TreeChangesSchema,
  WatchedSeriesSchema,
  type WatchResponseSchema,
  type WatchSubject,
} from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { type Trajectory, TrajectorySchema } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ListTrajectoriesRequest,
  ListTrajectoriesRequestSchema,
  ListTrajectoriesResponseSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { RunNews } from '../../stream/runs/run_news.ts';
import { WatchedRun } from '../../stream/runs/watch.ts';
import { type TreeNews, WatchedTrees } from '../../stream/trajectories/watch.ts';
import { type Told, watched } from '../../stream/watch.ts';
import { messageOf } from '../answer/message.ts';
import { groupMessage } from '../group/group.ts';
import type { Call } from '../method.ts';
import { fromRollout } from '../rollout/messages.ts';
import { listRuns } from '../run/list.ts';
import { fromProgress, fromRun } from '../run/messages.ts';
import { stageMessage } from '../stage/stage.ts';
import { listTrajectories } from '../trajectory/list.ts';
import { treeNode } from '../trajectory/messages.ts';
import { type PageNews, watchedPage } from './watched_page.ts';

/** What changed of a subject: the field of its kind. */
export type Changes = Pick<MessageInitShape<typeof WatchResponseSchema>, 'run' | 'runs' | 'tree' | 'trajectories'>;

type ToldChanges = AsyncGenerator<Told<Changes> | undefined, void, undefined>;

/** Watches a subject, one field of which is set. */
export function watchSubject(
  { run, runs, tree, trajectories = create(ListTrajectoriesRequestSchema) }: WatchSubject,
  call: Call,
  signal: AbortSignal,
): ToldChanges {
  const { app, caller } = call;
  if (run !== undefined)
    return converted(
      watched(app, () => WatchedRun.open(app, caller, run), signal),
      runChanges,
    );
  if (tree !== undefined) {
    const of = tree.treeId === '' ? { ids: tree.trajectoryIds } : { treeOf: tree.treeId };
    return converted(
      watched(app, () => WatchedTrees.open(app, caller, of), signal),
      treeChanges,
    );
  }
  if (runs !== undefined)
    return converted(
      watched(app, async () => runPage(runs, call), signal),
      runPageChanges,
    );
  return converted(
    watched(app, async () => trajectoryPage(trajectories, call), signal),
    trajectoryPageChanges,
  );
}

async function* converted<News>(
  told: AsyncIterable<Told<News> | undefined>,
  changesOf: (news: News) => Changes,
): ToldChanges {
  for await (const each of told) yield each && { ...each, news: changesOf(each.news) };
}

function runChanges({ run, stages, groups, rollouts, series, progress }: RunNews): Changes {
  const changes = messageOf(RunChangesSchema, {
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
  });
  return { run: changes };
}

function treeChanges({ rows, gains, tags, removed }: TreeNews): Changes {
  const nodes = rows.map((row) => treeNode(row, gains.get(row.ref.key), tags.get(row.ref.key)));
  return { tree: messageOf(TreeChangesSchema, { nodes, removedIds: [...removed] }) };
}

function runPage(list: ListRunsRequest, call: Call) {
  return watchedPage((listener) => call.app.changes.onAnyRun(listener), {
    schema: RunWithProgressSchema,
    read: async () => create(ListRunsResponseSchema, await listRuns(list, call)).runs,
    idOf: ({ run }) => run?.id ?? '',
  });
}

function runPageChanges({ changed, ids }: PageNews<RunWithProgress>): Changes {
  return { runs: { runs: [...changed], ...(ids && { page: { runIds: [...ids] } }) } };
}

function trajectoryPage(list: ListTrajectoriesRequest, call: Call) {
  return watchedPage((listener) => call.app.changes.onAnyTrajectory(() => listener()), {
    schema: TrajectorySchema,
    read: async () => create(ListTrajectoriesResponseSchema, await listTrajectories(list, call)).trajectories,
    idOf: ({ id }) => id,
  });
}

function trajectoryPageChanges({ changed, ids }: PageNews<Trajectory>): Changes {
  return { trajectories: { trajectories: [...changed], ...(ids && { page: { trajectoryIds: [...ids] } }) } };
}
