import type { MessageInitShape } from '@bufbuild/protobuf';
import { type Trajectory, TrajectorySchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { ListTrajectoriesRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { watchedPage } from './watched_page.ts';
import type { WatchCalls, WatchedOptions } from './watched_stream.ts';

/** Options of watchTrajectories(). */
export interface TrajectoriesWatchOptions extends WatchedOptions {
  /** The page to watch, as ListTrajectories takes it. Default: the first page of all trajectories. */
  readonly list?: MessageInitShape<typeof ListTrajectoriesRequestSchema>;
}

/** An immutable snapshot of a page of trajectories. */
export interface TrajectoriesPicture {
  /** The trajectories of the page, in order. */
  readonly trajectories: readonly Trajectory[];
  /** Differences from the previous picture. In the first picture, everything. */
  readonly changed: {
    readonly trajectories: readonly Trajectory[];
    /** Whether trajectories came, went or changed their order. */
    readonly page: boolean;
  };
}

/**
 * Watches a page of trajectories. Yields the whole picture, and again after every change and every reconnect (rule M5).
 * Throws permanent errors, and DEADLINE_EXCEEDED after `giveUpAfterMs` without a message.
 *
 *     for await (const { trajectories } of watchTrajectories(client, { list: { rootsOnly: true, pageSize: 20 } }))
 *       for (const { name, nextStepNumber } of trajectories) console.log(name, nextStepNumber);
 */
export async function* watchTrajectories(
  client: WatchCalls,
  options: TrajectoriesWatchOptions = {},
): AsyncGenerator<TrajectoriesPicture, void, undefined> {
  const pictures = watchedPage(
    client,
    options,
    { trajectories: options.list ?? {} },
    {
      schema: TrajectorySchema,
      idOf: ({ id }) => id,
      changesOf: ({ trajectories: changes }) =>
        changes && { rows: changes.trajectories, ids: changes.page?.trajectoryIds },
    },
  );
  for await (const { rows, changed, isNewPage } of pictures) {
    yield { trajectories: rows, changed: { trajectories: changed, page: isNewPage } };
  }
}
