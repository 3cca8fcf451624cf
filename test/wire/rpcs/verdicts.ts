import { expect } from 'vitest';
import type { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import type { LiveScene, RolloutScene } from './rollout_scene.ts';
import { NOBODY, type Rpcs } from './scene.ts';

export const VALIDATION_RPCS = {
  recordValidation: {
    requests: ({ runningId }) => [
      [{ rolloutId: runningId, validation: { name: 'free', success: true, advisory: true } }],
      [
        {
          rolloutId: runningId,
          attempt: 1,
          validation: {
            name: 'state',
            success: false,
            query: 'is it',
            expectedResult: 'yes',
            actualResult: 'no',
            executionDuration: { seconds: 2n, nanos: 250_000_000 },
            errorMessage: 'late',
            detailsJson: '{"why":1}',
          },
        },
      ],
    ],
    served: ([answer], { runningId, stateId }) => {
      const found = {
        rolloutId: runningId,
        attempt: 1,
        name: 'state',
        validatorId: stateId,
        advisory: false,
        success: false,
        query: 'is it',
        actualResult: 'no',
      };
      const executionDuration = { seconds: 2n, nanos: 250_000_000 };
      expect(answer?.validation).toMatchObject({ ...found, executionDuration, detailsJson: '{"why":1}' });
      expect(answer?.rollout).toMatchObject({ id: runningId, validationPassed: false, success: false });
    },
    refused: ({ runningId }) => ({
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY, validation: { name: 'state', success: true } }],
      NO_ATTEMPT: [{ rolloutId: runningId, attempt: 2, validation: { name: 'state', success: true } }],
    }),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, LiveScene, RolloutScene>>;

export const OVERRIDE_RPCS = {
  overrideValidation: {
    requests: ({ doneId }) => [[{ rolloutId: doneId, attempt: 1, success: false, reason: 'it cheated', actor: 'ann' }]],
    served: ([answer]) => {
      const override = { ordinal: 0n, attempt: 1, success: false, reason: 'it cheated', actor: 'ann' };
      expect(answer?.override).toMatchObject(override);
      expect(answer?.rollout).toMatchObject({ override, success: false, validationPassed: true });
    },
    refused: ({ pendingId }) => ({
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY, success: true, reason: 'looks good' }],
      NO_ATTEMPT: [{ rolloutId: pendingId, success: true, reason: 'looks good' }],
    }),
  },
  listValidationOverrides: {
    requests: async ({ doneId: rolloutId, rollouts }) => {
      await rollouts.overrideValidation({ rolloutId, success: false, reason: 'one' });
      await rollouts.overrideValidation({ rolloutId, reason: 'two' });
      const first = await rollouts.listValidationOverrides({ rolloutId, pageSize: 1 });
      expect(first.overrides).toMatchObject([{ reason: 'two' }]);
      return [[{ rolloutId, pageSize: 1, pageToken: first.nextPageToken }]];
    },
    served: ([answer]) => {
      expect(answer?.overrides).toMatchObject([{ ordinal: 0n, success: false, reason: 'one', actor: 'anonymous' }]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ doneId }) => ({
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ rolloutId: doneId, pageToken: 'none' }],
    }),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, RolloutScene>>;
