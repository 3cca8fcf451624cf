import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type ListRunsRequestSchema,
  type RunWithProgress,
  RunWithProgressSchema,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { watchedPage } from './watched_page.ts';
import type { WatchCalls, WatchedOptions } from './watched_stream.ts';

/** Options of watchRuns(). */
export interface RunsWatchOptions extends WatchedOptions {
  /** The page to watch, as ListRuns takes it. Default: the first page of all runs. */
  readonly list?: MessageInitShape<typeof ListRunsRequestSchema>;
}

/** An immutable snapshot of a page of runs. */
export interface RunsPicture {
  /** The runs of the page, in order. */
  readonly runs: readonly RunWithProgress[];
  /** Differences from the previous picture. In the first picture, everything. */
  readonly changed: {
    readonly runs: readonly RunWithProgress[];
    /** Whether runs came, went or changed their order. */
    readonly page: boolean;
  };
}

/**
 * Watches a page of runs. Yields the whole picture, and again after every change and every reconnect (rule M5). Throws
 * permanent errors, and DEADLINE_EXCEEDED after `giveUpAfterMs` without a message.
 *
 *     for await (const { runs } of watchRuns(client, { list: { experimentName: 'sweep', pageSize: 20 } }))
 *       for (const { run, progress } of runs) console.log(run?.name, progress?.percent);
 */
export async function* watchRuns(
  client: WatchCalls,
  options: RunsWatchOptions = {},
): AsyncGenerator<RunsPicture, void, undefined> {
  const pictures = watchedPage(
    client,
    options,
    { runs: options.list ?? {} },
    {
      schema: RunWithProgressSchema,
      idOf: ({ run }) => run?.id ?? '',
      changesOf: ({ runs }) => runs && { rows: runs.runs, ids: runs.page?.runIds },
    },
  );
  for await (const { rows, changed, isNewPage } of pictures) {
    yield { runs: rows, changed: { runs: changed, page: isNewPage } };
  }
}
