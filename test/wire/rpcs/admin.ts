import { expect } from 'vitest';
import type { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import { sha256 } from '../../support/steps.ts';
import type { Rpcs } from './scene.ts';

export const ADMIN_RPCS: Rpcs<typeof AdminService.method> = {
  getDatabaseStats: {
    requests: () => [[{}]],
    served: ([answer]) => {
      expect(answer!.trajectories).toBeGreaterThan(0n);
      expect(answer!.steps).toBeGreaterThanOrEqual(answer!.largestRuns[0]!.steps);
      expect(answer!.bytes).toBeGreaterThan(0n);
    },
    refused: () => ({}),
  },
  verifyDatabase: {
    requests: () => [[{}]],
    served: (answers) => {
      const last = answers.at(-1);
      expect(last?.doneSteps).toBe(last?.totalSteps);
      expect(answers.flatMap(({ faults }) => faults)).toEqual([]);
    },
    refused: () => ({}),
  },
  backupDatabase: {
    requests: () => [[{}]],
    served: (answers) => {
      const bytes = Buffer.concat(answers.map(({ chunk }) => chunk));
      expect(answers.at(-1)).toMatchObject({ totalBytes: BigInt(bytes.length), digest: sha256(bytes) });
    },
    refused: () => ({}),
  },
  vacuumDatabase: {
    requests: () => [[{}]],
    served: (answers) => expect(answers.at(-1)).toMatchObject({ freeBytes: 0n }),
    refused: () => ({}),
  },
};
