import { create } from '@bufbuild/protobuf';
import {
  ListRunsRequestSchema,
  ListRunsResponseSchema,
  type RunService,
  RunWithProgressSchema,
  WatchRunsResponseSchema,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { watchPage } from '../answer/watched_page.ts';
import type { ServerStream } from '../method.ts';
import { listRuns } from './list.ts';

/** Watches a page of ListRuns. */
export const watchRuns: ServerStream<typeof RunService.method.watchRuns> = {
  async *messages({ list = create(ListRunsRequestSchema) }, call) {
    const watched = watchPage(
      {
        schema: RunWithProgressSchema,
        read: async () => create(ListRunsResponseSchema, await listRuns(list, call)).runs,
        idOf: ({ run }) => run?.id ?? '',
      },
      call,
    );
    for await (const { changed, ids } of watched) {
      const page = ids === undefined ? {} : { page: { runIds: [...ids] } };
      yield create(WatchRunsResponseSchema, { runs: [...changed], ...page, caughtUp: true });
    }
  },
};
