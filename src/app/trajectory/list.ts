import type { Caller } from '../../domain/caller.ts';
import { parseUuid } from '../../domain/ids.ts';
import { requireText } from '../../domain/text.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { TrajectoryFilter } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { trajectorySource } from './page.ts';

export interface ListTrajectoriesArgs extends PageArgs {
  readonly filter: TrajectoryFilter;
  /** Whether metadata is shown: it counts for the size of a page then. */
  readonly view: 'BASIC' | 'FULL';
}

/** Newest first; a page ends early at about 1 MiB. */
export async function listTrajectories(
  app: App,
  caller: Caller,
  args: ListTrajectoriesArgs,
): Promise<PageOf<Trajectory>> {
  const filter = checkFilter(args.filter);
  const query = { caller, rpc: 'ListTrajectories', filter: [...filterFields(filter), args.view] };
  const cursor = readPageToken(query, args.pageToken);
  // None of the statuses asked for is one that a trajectory is ever in (L1).
  if (filter.statuses?.length === 0) return { items: [], nextPageToken: '' };
  const page = await gatherPage(
    trajectorySource(
      (limit, after) => app.store.listTrajectories(caller.namespace, filter, { limit, after }),
      args.view,
    ),
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    args.view,
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(query, [`${page.last}`]) : '' };
}

function checkFilter(filter: TrajectoryFilter): TrajectoryFilter {
  requireText(filter.taskId ?? '', 'task_id');
  requireText(filter.name ?? '', 'name');
  for (const pair of filter.labels ?? []) for (const text of pair) requireText(text, 'labels');
  return {
    ...filter,
    ...(filter.parentId === undefined ? {} : { parentId: parseUuid(filter.parentId, 'parent_id') }),
    ...(filter.treeId === undefined ? {} : { treeId: parseUuid(filter.treeId, 'tree_id') }),
    ...(filter.runId === undefined ? {} : { runId: parseUuid(filter.runId, 'run_id') }),
    ...(filter.experimentId === undefined ? {} : { experimentId: parseUuid(filter.experimentId, 'experiment_id') }),
  };
}

function filterFields(filter: TrajectoryFilter): unknown[] {
  return [
    filter.taskId,
    filter.statuses === undefined ? undefined : [...filter.statuses].sort(),
    filter.labels,
    filter.parentId,
    filter.branchPoint,
    filter.treeId,
    filter.rootsOnly,
    filter.name,
    filter.createTimeFrom,
    filter.createTimeTo,
    filter.runId,
    filter.experimentId,
    filter.withoutRun,
  ];
}
