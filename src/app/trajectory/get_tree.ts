import type { Caller } from '../../domain/caller.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import { findTrajectory, requireStillThere } from '../../stream/find.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { trajectorySource } from './page.ts';

export interface GetTreeArgs extends PageArgs {
  /** Any trajectory of the tree. */
  readonly trajectoryId: string;
}

/** A parent before its branches; hidden ones (deleted, but shared) included. Errors: TRAJECTORY_NOT_FOUND. */
export async function getTree(app: App, caller: Caller, args: GetTreeArgs): Promise<PageOf<Trajectory>> {
  const trajectory = await findTrajectory(app, caller, args.trajectoryId);
  const { ref } = trajectory;
  const bound = { ...args, binding: `${args.binding}/${ref.tree}` };
  const cursor = readPageToken(bound);
  const page = await gatherPage(
    trajectorySource((limit, after) => app.store.listTree(caller.namespace, ref.tree, { limit, after }), 'BASIC'),
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    'BASIC',
  );
  if (page.items.length === 0) await requireStillThere(app, caller, trajectory);
  return { items: page.items, nextPageToken: page.more ? makePageToken(bound.binding, [`${page.last}`]) : '' };
}
