import type { Caller } from '../../domain/caller.ts';
import { trajectoryNotFound } from '../../domain/errors.ts';
import { segmentsOf } from '../../domain/lineage.ts';
import type { App } from '../app.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { findTrajectory } from './get.ts';

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
  const trajectory = await findTrajectory(app, caller, args.trajectoryId, 'trajectory_id');
  const query = { caller, rpc: 'GetLineage', filter: [trajectory.ref.key] };
  const cursor = readPageToken(query, args.pageToken);
  // Read anew: names and deletions of ancestors change, only their links do not.
  const chain = await app.store.getLineage(caller.namespace, trajectory.ref);
  if (chain.length === 0) throw trajectoryNotFound(trajectory.id);
  const begin = cursor === undefined ? 0 : Number(cursorInt(cursor, 0));
  const end = begin + pageLimit(args.pageSize);
  const items = segmentsOf(chain, trajectory.nextStepNumber).map(({ from, to }, i) => ({
    trajectoryId: chain[i]!.id,
    name: chain[i]!.name,
    startStepNumber: from,
    endStepNumber: to,
    deleted: chain[i]!.hidden,
  }));
  return { items: items.slice(begin, end), nextPageToken: end < items.length ? makePageToken(query, [`${end}`]) : '' };
}
