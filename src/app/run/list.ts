import type { Caller } from '../../domain/caller.ts';
import type { Progress } from '../../domain/progress.ts';
import type { Run } from '../../domain/run.ts';
import type { BookView } from '../../store/contract/experiment.ts';
import type { RunFilter } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { gatherPage, PAGE_BYTES } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { placeOfExperiment } from './fields.ts';
import { shownProgress } from './progress.ts';
import { progressBytes, runBytes } from './row_bytes.ts';

export interface ListRunsArgs extends PageArgs {
  /** Empty: any. */
  readonly experimentId: string;
  readonly experimentName: string;
  readonly filter: Omit<RunFilter, 'experiment'>;
  readonly view: BookView;
}

export interface RunWithProgress {
  readonly run: Run;
  readonly progress: Progress;
}

/** Newest first; a page ends early at about 1 MiB. The statements do not grow with the runs (K-C6). Errors: EXPERIMENT_NOT_FOUND. */
export async function listRuns(app: App, caller: Caller, args: ListRunsArgs): Promise<PageOf<RunWithProgress>> {
  const { view } = args;
  const filter = checkFilter(args);
  const cursor = readPageToken(args);
  const page = await gatherPage(
    {
      fetch: (limit, after) => app.store.listRuns(caller.namespace, filter, { limit, after }, view),
      keyOf: ({ key }) => key,
      bytesOf: (run) => runBytes(run, view),
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    view,
  );
  const items = fitting(await withProgress(app, caller, page.items), view);
  const more = page.more || items.length < page.items.length;
  return { items, nextPageToken: more ? makePageToken(args.binding, [`${items.at(-1)?.run.key}`]) : '' };
}

async function withProgress(app: App, caller: Caller, runs: readonly Run[]): Promise<RunWithProgress[]> {
  if (runs.length === 0) return [];
  const keys = runs.map(({ key }) => key);
  const tallies = await app.store.tallyRuns(caller.namespace, keys);
  return runs.map((run) => ({ run, progress: shownProgress(run, tallies) }));
}

/** As many as fit into one message with their progress, but at least one. */
function fitting(runs: readonly RunWithProgress[], view: BookView): readonly RunWithProgress[] {
  let bytes = 0;
  const cut = runs.findIndex(({ run, progress }, i) => {
    bytes += runBytes(run, view) + progressBytes(progress);
    return i > 0 && bytes > PAGE_BYTES;
  });
  return cut === -1 ? runs : runs.slice(0, cut);
}

function checkFilter({ experimentId, experimentName, filter }: ListRunsArgs): RunFilter {
  const experiment = placeOfExperiment(experimentId, experimentName);
  return experiment === undefined ? filter : { ...filter, experiment };
}
