import type { Caller } from '../../domain/caller.ts';
import { parseTagName } from '../../domain/ids.ts';
import type { Tag } from '../../store/contract/tag.ts';
import type { App } from '../app.ts';
import { makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';

export interface TagArgs {
  readonly trajectoryId: string;
  readonly name: string;
}

export interface SetTagArgs extends TagArgs {
  readonly stepNumber: bigint;
  /** Where it must be now; -1: nowhere; undefined: wherever (B5). */
  readonly expectedStepNumber: bigint | undefined;
}

export interface ListTagsArgs extends PageArgs {
  readonly trajectoryId: string;
}

/** Errors: TRAJECTORY_NOT_FOUND, STEP_NOT_FOUND, TAG_MOVED. */
export async function setTag(app: App, caller: Caller, args: SetTagArgs): Promise<Tag> {
  return app.store.setTag(caller.namespace, args.trajectoryId, args.name, args.stepNumber, args.expectedStepNumber);
}

/** Errors: TRAJECTORY_NOT_FOUND, TAG_NOT_FOUND. */
export async function getTag(app: App, caller: Caller, args: TagArgs): Promise<Tag> {
  return app.store.getTag(caller.namespace, args.trajectoryId, args.name);
}

/** By name in order of bytes. Errors: TRAJECTORY_NOT_FOUND. */
export async function listTags(app: App, caller: Caller, args: ListTagsArgs): Promise<PageOf<Tag>> {
  const cursor = readPageToken(args);
  const limit = pageLimit(args.pageSize);
  const after = cursor?.[0] === undefined ? undefined : parseTagName(cursor[0], 'page_token');
  const items = await app.store.listTags(caller.namespace, args.trajectoryId, { limit: limit + 1, after });
  if (items.length <= limit) return { items, nextPageToken: '' };
  const page = items.slice(0, limit);
  return { items: page, nextPageToken: makePageToken(args.binding, [page[limit - 1]!.name]) };
}

/** Errors: TRAJECTORY_NOT_FOUND, TAG_NOT_FOUND. */
export async function deleteTag(app: App, caller: Caller, args: TagArgs): Promise<void> {
  await app.store.deleteTag(caller.namespace, args.trajectoryId, args.name);
}
