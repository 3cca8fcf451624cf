import type { Caller } from '../../domain/caller.ts';
import { runNotFound } from '../../domain/errors.ts';
import { parseUuid } from '../../domain/ids.ts';
import type { Run } from '../../domain/run.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { runBytes } from './row_bytes.ts';

export interface GetRunTreeArgs extends PageArgs {
  /** Any run of the tree. */
  readonly runId: string;
}

/** A parent before its branches, whatever the depth. Errors: RUN_NOT_FOUND. */
export async function getRunTree(app: App, caller: Caller, args: GetRunTreeArgs): Promise<PageOf<Run>> {
  const id = parseUuid(args.runId, 'run_id');
  const query = { caller, rpc: 'GetRunTree', filter: [id] };
  const cursor = readPageToken(query, args.pageToken);
  const page = await gatherPage(
    {
      async fetch(limit, after) {
        const runs = await app.store.listRunTree(caller.namespace, id, { limit, after });
        if (runs === undefined) throw runNotFound(id);
        return runs;
      },
      keyOf: ({ key }) => key,
      bytesOf: (each) => runBytes(each, 'BASIC'),
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    'BASIC',
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(query, [`${page.last}`]) : '' };
}
