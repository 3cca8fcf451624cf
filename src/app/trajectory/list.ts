import type { Caller } from '../../domain/caller.ts';
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
  const { filter } = args;
  const cursor = readPageToken(args);
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
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [`${page.last}`]) : '' };
}
