import type { Caller } from '../../domain/caller.ts';
import type { StatusChange, StatusOwner } from '../../store/contract/status_change.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { statusChangeBytes } from './row_bytes.ts';

export interface ListStatusChangesArgs extends PageArgs {
  readonly of: StatusOwner;
  /** Oldest first. */
  readonly ascending: boolean;
}

/** L5: the history of one status. Errors: the noun's NOT_FOUND. */
export async function listStatusChanges(
  app: App,
  caller: Caller,
  args: ListStatusChangesArgs,
): Promise<PageOf<StatusChange>> {
  const { of: owner, ascending } = args;
  const cursor = readPageToken(args);
  const page = await gatherPage(
    {
      fetch: (limit, after) => app.store.listStatusChanges(caller.namespace, owner, { limit, after }, ascending),
      keyOf: ({ ordinal }) => ordinal,
      bytesOf: statusChangeBytes,
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    'FULL',
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [`${page.last}`]) : '' };
}
