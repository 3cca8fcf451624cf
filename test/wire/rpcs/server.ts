import { create, toBinary } from '@bufbuild/protobuf';
import { expect } from 'vitest';
import type { ServerService } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { WatchTreeRequestSchema } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { NOBODY, type Rpcs } from './scene.ts';

export const SERVER_RPCS: Rpcs<typeof ServerService.method> = {
  getServerInfo: {
    requests: () => [[{}]],
    served: ([answer]) => {
      expect(answer?.version).toMatch(/^\d+\.\d+\.\d+$/);
      expect(answer?.limits).toMatchObject({ maxPageSize: 1000n });
    },
    refused: () => ({}),
  },
  watch: {
    requests: () => {
      const request = toBinary(WatchTreeRequestSchema, create(WatchTreeRequestSchema, { treeId: NOBODY }));
      return [[{ watches: [{ method: 'anabranch.v1.TrajectoryService/WatchTree', request }] }]];
    },
    served: (answers) => {
      expect(answers).toMatchObject([{ watch: 0, error: { reason: 'TRAJECTORY_NOT_FOUND', field: 'tree_id' } }]);
    },
    refused: () => ({}),
  },
};
