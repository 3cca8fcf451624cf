import type { Caller } from '../../domain/caller.ts';
import { trajectoryNotFound } from '../../domain/errors.ts';
import { findTrajectory } from '../../stream/find.ts';
import type { App } from '../app.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';

export interface LineageSegment {
  readonly trajectoryId: string;
  readonly name: string;
  readonly startStepNumber: bigint;
  readonly endStepNumber: bigint;
  /** The owner was deleted; its steps live on for its branches. */
  readonly deleted: boolean;
}

export interface GetLineageArgs extends PageArgs {
  readonly trajectoryId: string;
}

/** Who owns which steps, from the root on; the last segment is the trajectory's own and may be empty. Errors: TRAJECTORY_NOT_FOUND. */
export async function getLineage(app: App, caller: Caller, args: GetLineageArgs): Promise<PageOf<LineageSegment>> {
  const trajectory = await findTrajectory(app, caller, args.trajectoryId);
  const bound = { ...args, binding: `${args.binding}/${trajectory.ref.key}` };
  const cursor = readPageToken(bound);
  const segments = await app.lineages.whole(app.store, caller.namespace, trajectory);
  const begin = cursor === undefined ? 0 : Number(cursorInt(cursor, 0));
  const end = begin + pageLimit(args.pageSize);
  const page = segments.slice(begin, end);
  // Read anew: names and deletions of ancestors change, only their links do not.
  const keys = page.map(({ key }) => key);
  const owners = await app.store.getOwners(caller.namespace, trajectory.ref.tree, keys);
  if (segments.length === 0 || owners.size < page.length) throw trajectoryNotFound(trajectory.id);
  const items = page.map(({ key, from, to }) => {
    const { id, name, hidden } = owners.get(key)!;
    return { trajectoryId: id, name, startStepNumber: from, endStepNumber: to, deleted: hidden };
  });
  return { items, nextPageToken: end < segments.length ? makePageToken(bound.binding, [`${end}`]) : '' };
}
