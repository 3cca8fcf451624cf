import type { Caller } from '../../domain/caller.ts';
import { groupNotFound } from '../../domain/errors.ts';
import type { Group } from '../../domain/rollout.ts';
import type { BookView } from '../../store/contract/experiment.ts';
import type { GroupChanges, GroupPlace, NewGroup } from '../../store/contract/group.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { groupBytes } from './row_bytes.ts';

/** One row however many race. Errors: STAGE_NOT_FOUND. */
export async function getOrCreateGroup(
  app: App,
  caller: Caller,
  args: Omit<NewGroup, 'id'>,
): Promise<{ readonly group: Group; readonly created: boolean }> {
  return app.store.getOrCreateGroup(caller.namespace, { ...args, id: app.ids.uuid() });
}

/** Errors: GROUP_NOT_FOUND. */
export async function getGroup(app: App, caller: Caller, place: GroupPlace): Promise<Group> {
  const found = await app.store.getGroup(caller.namespace, place);
  if (found !== undefined) return found;
  throw groupNotFound('id' in place ? place.id : `${place.number} of stage ${place.stageId}`);
}

export interface ListGroupsArgs extends PageArgs {
  readonly stageId: string;
  readonly view: BookView;
}

/** By number; a page ends early at about 1 MiB. Errors: STAGE_NOT_FOUND. */
export async function listGroups(app: App, caller: Caller, args: ListGroupsArgs): Promise<PageOf<Group>> {
  const { stageId, view } = args;
  const cursor = readPageToken(args);
  const page = await gatherPage(
    {
      fetch: (limit, after) => app.store.listGroups(caller.namespace, stageId, { limit, after }, view),
      keyOf: ({ number }) => number,
      bytesOf: (group) => groupBytes(group, view),
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    view,
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [`${page.last}`]) : '' };
}

export interface UpdateGroupArgs {
  readonly groupId: string;
  /** What the mask names; at least one. */
  readonly changes: GroupChanges;
}

/** Labels are replaced, metrics merged by key (FM7). Errors: GROUP_NOT_FOUND. */
export async function updateGroup(app: App, caller: Caller, { groupId, changes }: UpdateGroupArgs): Promise<Group> {
  return app.store.updateGroup(caller.namespace, groupId, changes);
}
