import { expect } from 'vitest';
import type { ServerService } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import type { Rpcs } from './scene.ts';

export const SERVER_RPCS: Rpcs<typeof ServerService.method> = {
  getServerInfo: {
    requests: () => [[{}]],
    served: ([answer]) => {
      expect(answer?.version).toMatch(/^\d+\.\d+\.\d+$/);
      expect(answer?.limits).toMatchObject({ maxPageSize: 1000n });
      expect(answer?.features).toContain('diff_states');
    },
    refused: () => ({}),
  },
};
