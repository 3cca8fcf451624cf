import { equals, type MessageInitShape } from '@bufbuild/protobuf';
import {
  type ListRunsRequestSchema,
  type RunWithProgress,
  RunWithProgressSchema,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { ClientCalls } from './calls.ts';
import { type WatchedOptions, watchedStream } from './watched_stream.ts';

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
  client: Pick<ClientCalls, 'runs'>,
  options: RunsWatchOptions = {},
): AsyncGenerator<RunsPicture, void, undefined> {
  const { list = {} } = options;
  let known = new Map<string, RunWithProgress>();
  let page: readonly string[] = [];
  const fresh = new Map<string, RunWithProgress>();
  let isNewPage = true;
  let isSnapshot = true;
  const open = (signal: AbortSignal) => {
    isSnapshot = true;
    return client.runs.watchRuns({ list }, { signal });
  };
  for await (const message of watchedStream(options, open)) {
    for (const each of message.runs) {
      const id = each.run?.id ?? '';
      const before = known.get(id);
      if (before !== undefined && equals(RunWithProgressSchema, before, each)) continue;
      known.set(id, each);
      fresh.set(id, each);
    }
    if (message.page !== undefined) {
      const { runIds } = message.page;
      isNewPage ||= runIds.length !== page.length || runIds.some((id, i) => id !== page[i]);
      page = runIds;
    }
    if (!message.caughtUp) continue;
    // Runs that left the page are forgotten. One that comes back is sent again.
    const runs = page.flatMap((id) => known.get(id) ?? []);
    known = new Map(runs.map((each) => [each.run?.id ?? '', each]));
    const changed = { runs: [...fresh.values()].filter(({ run }) => known.has(run?.id ?? '')), page: isNewPage };
    if (!isSnapshot && !isNewPage && changed.runs.length === 0) continue;
    [isSnapshot, isNewPage] = [false, false];
    fresh.clear();
    yield { runs, changed };
  }
}
