import type { MessageInitShape } from '@bufbuild/protobuf';
import { TrajectorySchema } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ListTrajectoriesRequest,
  type ListTrajectoriesResponseSchema,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { sortValue } from '../../domain/list_order.ts';
import { sizerOf } from '../answer/message.ts';
import { pageByKey } from '../answer/page.ts';
import { toView } from '../convert/values.ts';
import type { Call } from '../method.ts';
import { pageArgsOf, readListKey, toListSort, writeListKey } from '../request/page_token.ts';
import { fromTrajectory } from './messages.ts';
import { toTrajectoryFilter } from './requests.ts';

export const trajectoryBytes = sizerOf(TrajectorySchema);

/** Lists trajectories. */
export async function listTrajectories(
  request: ListTrajectoriesRequest,
  { app, caller }: Pick<Call, 'app' | 'caller'>,
): Promise<MessageInitShape<typeof ListTrajectoriesResponseSchema>> {
  const view = toView(request.view, 'BASIC');
  const filter = toTrajectoryFilter(request);
  // A filter by statuses that trajectories never have (L1).
  const findsNothing = filter.statuses?.length === 0;
  const sort = toListSort(request);
  const page = await pageByKey(pageArgsOf({ app, caller }, TrajectoryService.method.listTrajectories, request), {
    view,
    fetch: async ({ limit, after }) =>
      findsNothing
        ? []
        : app.store.listTrajectories(caller.namespace, filter, {
            limit,
            sort,
            after: after?.key,
            value: after?.value,
          }),
    keyOf: (row) => ({
      key: row.ref.key,
      value: sort && sortValue(sort, { ...row, reward: row.rewardSum }),
    }),
    readKey: (cursor) => readListKey(sort, cursor),
    writeKey: writeListKey,
    show: (row) => fromTrajectory(row, view),
    bytesOf: trajectoryBytes,
  });
  return { trajectories: page.items, nextPageToken: page.nextPageToken };
}
