import { expect } from 'vitest';
import type { StateService } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { sha256 } from '../samples.ts';
import { bytes, NO_STATE, NOBODY, type Rpcs } from './scene.ts';

export const STATE_RPCS: Rpcs<typeof StateService.method> = {
  putState: {
    requests: ({ put }) => [
      [{ digest: sha256(bytes('two chunks')), baseDigest: put, chunk: bytes('two ') }, { chunk: bytes('chunks') }],
    ],
    served: ([answer]) => {
      expect(answer?.state).toMatchObject({ digest: sha256(bytes('two chunks')), size: 10n });
    },
    refused: () => ({
      DIGEST_MISMATCH: [{ digest: NO_STATE, chunk: bytes('x') }],
      INVALID_REQUEST: [{ chunk: bytes('x') }, { digest: NO_STATE }],
    }),
  },
  getState: {
    requests: ({ put, branchId }) => [
      [{ reference: { trajectoryId: branchId, stepNumber: 1n, name: 'env' } }],
      [{ digest: put, offset: 2n, length: 3n }],
    ],
    served: (answers, { put, task }) => {
      expect(answers[0]?.state).toMatchObject({ digest: put, size: BigInt(task.length) });
      expect(Buffer.concat(answers.map(({ chunk }) => chunk)).toString()).toBe(task.slice(2, 5));
    },
    refused: ({ put, id }) => ({
      STATE_NOT_FOUND: [{ digest: NO_STATE }],
      TRAJECTORY_NOT_FOUND: [{ reference: { trajectoryId: NOBODY, stepNumber: 1n } }],
      STEP_NOT_FOUND: [{ reference: { trajectoryId: id, stepNumber: 4n } }],
      INVALID_REQUEST: [{ reference: { trajectoryId: id } }],
      RANGE_BEYOND_END: [{ digest: put, offset: 1_000n }],
    }),
  },
  hasStates: {
    requests: ({ put }) => [[{ digests: [NO_STATE, put] }]],
    served: ([answer], { put, task }) => {
      expect(answer?.states).toMatchObject([{ digest: put, size: BigInt(task.length) }]);
    },
    refused: () => ({ INVALID_REQUEST: [{ digests: [] }] }),
  },
  readStates: {
    requests: ({ branchId, put, task }) => [
      [{ steps: { taskId: task, hasState: 'env', pageSize: 2 } }],
      [{ range: { trajectoryId: branchId, startStepNumber: 1n, endStepNumber: 3n, name: 'env', every: 2n } }],
      [{ references: [{ trajectoryId: branchId, stepNumber: 1n, name: 'env' }] }],
      [{ digests: [NO_STATE, put] }],
    ],
    served: (answers, { put, task }) => {
      expect(answers.flatMap(({ unknownDigests }) => unknownDigests)).toEqual([NO_STATE]);
      const [piece] = answers.flatMap(({ pieces }) => pieces);
      expect(piece).toMatchObject({ digest: put, size: BigInt(task.length), data: bytes(task) });
    },
    refused: ({ id, put }) => ({
      TRAJECTORY_NOT_FOUND: [{ range: { trajectoryId: NOBODY } }],
      STEP_NOT_FOUND: [{ references: [{ trajectoryId: id, stepNumber: 4n }] }],
      STATE_NOT_FOUND: [{ references: [{ trajectoryId: id, stepNumber: 1n, name: 'none' }] }],
      RANGE_BEYOND_END: [{ range: { trajectoryId: id, startStepNumber: 5n } }],
      RUN_NOT_FOUND: [{ steps: { runId: NOBODY } }],
      EXPERIMENT_NOT_FOUND: [{ steps: { experimentId: NOBODY } }],
      INVALID_PAGE_TOKEN: [{ steps: { trajectoryId: id, pageToken: 'none' } }],
      INVALID_REQUEST: [{ range: { trajectoryId: id }, digests: [put] }],
    }),
  },
  getStorageUsage: {
    requests: ({ branchId, runId }) => [[{ trajectoryId: branchId }], [{ runId }], [{}]],
    served: (answers) => {
      const { usage, doneSteps, totalSteps } = answers.at(-1)!;
      expect(answers.slice(0, -1).every((each) => each.usage === undefined)).toBe(true);
      expect(doneSteps).toBe(totalSteps);
      expect(usage?.steps?.logicalBytes).toBeGreaterThan(0n);
      expect(usage?.steps?.uniqueBytes).toBe(usage!.steps!.storedBytes - usage!.steps!.sharedBytes);
    },
    refused: ({ id, runId }) => ({
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      INVALID_REQUEST: [{ trajectoryId: id, runId }],
    }),
  },
};
