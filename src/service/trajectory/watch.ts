import { type TrajectoryService, WatchTreeResponseSchema } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { watchTree as watchTreeOf } from '../../stream/trajectories/watch.ts';
import { messageOf } from '../answer/message.ts';
import type { ServerStream } from '../method.ts';
import { treeNode } from './messages.ts';

/** Watches the trajectories of a tree, or some trajectories (M5). */
export const watchTree: ServerStream<typeof TrajectoryService.method.watchTree> = {
  async *messages({ treeId, trajectoryIds }, { app, caller, signal }) {
    const of = treeId === '' ? { ids: trajectoryIds } : { treeOf: treeId };
    for await (const { rows, gains, tags, removed, caughtUp } of watchTreeOf(app, caller, { of, signal })) {
      const nodes = rows.map((row) => treeNode(row, gains.get(row.ref.key), tags.get(row.ref.key)));
      yield messageOf(WatchTreeResponseSchema, { nodes, removedIds: [...removed], caughtUp });
    }
  },
};
