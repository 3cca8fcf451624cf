import type { Caller } from '../../domain/caller.ts';
import { runNotFound } from '../../domain/errors.ts';
import type { Run } from '../../domain/run.ts';
import type { Page } from '../../store/contract/page.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { runBytes } from './row_bytes.ts';

export type GetRunTreeArgs = PageArgs & TreesPlace;

/** Any run of one tree, or the experiment of all trees. */
type TreesPlace = { readonly runId: string } | { readonly experimentId: string };

/** A parent comes before its branches, whatever the depth. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
export async function getRunTree(app: App, caller: Caller, args: GetRunTreeArgs): Promise<PageOf<Run>> {
  const cursor = readPageToken(args);
  const page = await gatherPage(
    {
      fetch: (limit, after) => fetchRuns(app, caller, args, { limit, after }),
      keyOf: ({ key }) => key,
      bytesOf: (each) => runBytes(each, 'BASIC'),
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    'BASIC',
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [`${page.last}`]) : '' };
}

async function fetchRuns(app: App, { namespace }: Caller, of: TreesPlace, page: Page<bigint>): Promise<Run[]> {
  if ('experimentId' in of) return app.store.listRunTrees(namespace, of.experimentId, page);
  const runs = await app.store.listRunTree(namespace, of.runId, page);
  if (runs === undefined) throw runNotFound(of.runId);
  return runs;
}
