import { expect } from 'vitest';
import type { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { LiveScene, RolloutScene } from './rollout_scene.ts';
import { LATE, LONG_AGO, NOBODY, type Rpcs } from './scene.ts';

const SAID = { message: 'why', metadataJson: '{"how":1}' };
const RESULT = {
  reward: 0.5,
  taskCompleted: true,
  agentReportedSuccess: true,
  success: false,
  errors: ['slow'],
  summaryJson: '{"n":2}',
};

const MEASURED = { metrics: { tokens: 7 }, timings: { task: { startTime: LONG_AGO, endTime: LATE } } };

/** The result with which the first rollout of the scene was completed. */
const DONE = { taskCompleted: true, summaryJson: '{"n":1}' };

export const ROLLOUT_VERB_RPCS = {
  startRollout: {
    requests: ({ heldId }) => [[{ rolloutId: heldId, attempt: 1, ...SAID, phase: 'task' }]],
    served: ([answer]) => {
      expect(answer?.rollout).toMatchObject({ status: Status.RUNNING, statusMessage: 'why', phase: 'task' });
      expect(answer?.rollout?.startTime).toBeDefined();
    },
    refused: ({ heldId, doneId }) => ({
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY, attempt: 1 }],
      LEASE_LOST: [{ rolloutId: heldId, attempt: 2 }],
      ILLEGAL_TRANSITION: [{ rolloutId: doneId, attempt: 1 }],
    }),
  },
  completeRollout: {
    requests: ({ runningId }) => [
      [
        {
          rolloutId: runningId,
          attempt: 1,
          ...SAID,
          result: RESULT,
          validations: [
            {
              name: 'state',
              success: true,
              query: 'is it',
              expectedResult: 'yes',
              actualResult: 'yes',
              executionDuration: { seconds: 1n, nanos: 500_000_000 },
              errorMessage: 'late',
              detailsJson: '[]',
            },
            { name: 'look', success: false },
          ],
          expectedNextStepNumber: 0n,
          ...MEASURED,
        },
      ],
    ],
    served: ([answer]) => {
      const ended = {
        status: Status.COMPLETED,
        statusMessage: 'why',
        result: RESULT,
        reward: 0.5,
        metrics: { tokens: 7 },
      };
      const timings = { task: { startTime: LONG_AGO, endTime: LATE } };
      expect(answer?.rollout).toMatchObject({ ...ended, timings, validationPassed: true, success: true });
    },
    refused: ({ runningId, failedId, doneId }) => ({
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY, attempt: 1 }],
      LEASE_LOST: [{ rolloutId: runningId, attempt: 2 }],
      UNEXPECTED_POSITION: [{ rolloutId: runningId, attempt: 1, expectedNextStepNumber: 9n }],
      ILLEGAL_TRANSITION: [{ rolloutId: failedId, attempt: 1 }],
      RESULT_CONFLICT: [
        { rolloutId: doneId, attempt: 1, message: 'for another reason' },
        { rolloutId: doneId, attempt: 1, message: 'done', result: DONE, metrics: { tokens: 101 } },
      ],
    }),
  },
  failRollout: {
    requests: ({ runningId }) => {
      const validations = [{ name: 'state', success: true }];
      return [[{ rolloutId: runningId, attempt: 1, ...SAID, result: RESULT, validations, ...MEASURED }]];
    },
    served: ([answer]) => {
      const ended = { status: Status.FAILED, statusMessage: 'why', result: RESULT, success: false };
      expect(answer?.rollout).toMatchObject({ ...ended, ...MEASURED, validationPassed: true });
    },
    refused: ({ heldId, failedId, doneId }) => ({
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY, attempt: 1 }],
      LEASE_LOST: [{ rolloutId: heldId, attempt: 2 }],
      ILLEGAL_TRANSITION: [{ rolloutId: doneId, attempt: 1 }],
      RESULT_CONFLICT: [{ rolloutId: failedId, attempt: 1, message: 'for another reason' }],
    }),
  },
  cancelRollout: {
    requests: ({ runningId }) => [[{ rolloutId: runningId, ...SAID }]],
    served: ([answer]) => expect(answer?.rollout).toMatchObject({ status: Status.CANCELLED, statusMessage: 'why' }),
    refused: ({ doneId, pendingId, rollouts }) => ({
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY }],
      ILLEGAL_TRANSITION: [{ rolloutId: doneId }],
      RESULT_CONFLICT: async () => {
        await rollouts.cancelRollout({ rolloutId: pendingId, message: 'for one reason' });
        return [{ rolloutId: pendingId, message: 'for another' }];
      },
    }),
  },
  releaseRollout: {
    requests: ({ runningId }) => {
      const validations = [{ name: 'state', success: true }];
      return [[{ rolloutId: runningId, attempt: 1, refundAttempt: true, ...SAID, validations, ...MEASURED }]];
    },
    served: ([answer]) => {
      const { rollout } = answer!;
      expect(rollout).toMatchObject({ status: Status.PENDING, statusMessage: 'why', attempt: 1, workerId: '' });
      expect(rollout).toMatchObject({ refundedAttempts: 1, retryDelay: { seconds: 1n, nanos: 0 } });
      expect(rollout?.claimableTime, 'a refunded attempt delays nothing').toEqual(rollout?.updateTime);
    },
    refused: ({ heldId, runningId, doneId, rollouts }) => ({
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY, attempt: 1 }],
      LEASE_LOST: [{ rolloutId: heldId, attempt: 2 }],
      ILLEGAL_TRANSITION: [{ rolloutId: doneId, attempt: 1 }],
      RESULT_CONFLICT: async () => {
        await rollouts.releaseRollout({ rolloutId: runningId, attempt: 1, message: 'for one reason' });
        return [{ rolloutId: runningId, attempt: 1, message: 'for one reason', metrics: { tokens: 1 } }];
      },
    }),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, LiveScene, RolloutScene>>;

export const RETRY_RPCS = {
  retryRollout: {
    requests: ({ failedId }) => [[{ rolloutId: failedId, attempt: 1, ...SAID }]],
    served: ([answer]) => {
      expect(answer?.rollout).toMatchObject({ status: Status.PENDING, statusMessage: 'why', attempt: 1 });
    },
    refused: ({ failedId, doneId }) => ({
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY, attempt: 1 }],
      LEASE_LOST: [{ rolloutId: failedId, attempt: 2 }],
      ILLEGAL_TRANSITION: [{ rolloutId: doneId, attempt: 1 }],
    }),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, RolloutScene>>;
