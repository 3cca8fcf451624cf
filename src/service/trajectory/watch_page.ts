import { create } from '@bufbuild/protobuf';
import { TrajectorySchema } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  ListTrajectoriesRequestSchema,
  ListTrajectoriesResponseSchema,
  type TrajectoryService,
  WatchTrajectoriesResponseSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { watchPage } from '../answer/watched_page.ts';
import type { ServerStream } from '../method.ts';
import { listTrajectories } from './list.ts';

/** Watches a page of ListTrajectories. */
export const watchTrajectories: ServerStream<typeof TrajectoryService.method.watchTrajectories> = {
  async *messages({ list = create(ListTrajectoriesRequestSchema) }, call) {
    const watched = watchPage(
      {
        schema: TrajectorySchema,
        read: async () => create(ListTrajectoriesResponseSchema, await listTrajectories(list, call)).trajectories,
        idOf: ({ id }) => id,
      },
      call,
    );
    for await (const { changed, ids } of watched) {
      const page = ids === undefined ? {} : { page: { trajectoryIds: [...ids] } };
      yield create(WatchTrajectoriesResponseSchema, { trajectories: [...changed], ...page, caughtUp: true });
    }
  },
};
