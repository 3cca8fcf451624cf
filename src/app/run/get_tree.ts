import type { Caller } from '../../domain/caller.ts';
import type { Run } from '../../domain/run.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { findRun, requireRunStillThere } from './get.ts';
import { runBytes } from './row_bytes.ts';

export interface GetRunTreeArgs extends PageArgs {
  /** Any run of the tree. */
  readonly runId: string;
}

/** A parent before its branches, whatever the depth. Errors: RUN_NOT_FOUND. */
export async function getRunTree(app: App, caller: Caller, args: GetRunTreeArgs): Promise<PageOf<Run>> {
  const run = await findRun(app, caller, args.runId, 'run_id');
  const query = { caller, rpc: 'GetRunTree', filter: [run.tree.key] };
  const cursor = readPageToken(query, args.pageToken);
  const page = await gatherPage(
    {
      fetch: (limit, after) => app.store.listRunTree(caller.namespace, run, { limit, after }),
      keyOf: ({ key }) => key,
      bytesOf: (each) => runBytes(each, 'BASIC'),
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    'BASIC',
  );
  if (page.items.length === 0) await requireRunStillThere(app, caller, run);
  return { items: page.items, nextPageToken: page.more ? makePageToken(query, [`${page.last}`]) : '' };
}
