import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import type { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { LiveScene, RolloutScene } from './rollout_scene.ts';
import { NOBODY, type Rpcs } from './scene.ts';

export const CLAIM_RPCS = {
  claimRollouts: {
    requests: async ({ runId, stageId, taskId, pendingId, rollouts }) => {
      await rollouts.updateRollout({ rolloutId: pendingId, updateMask: { paths: ['priority'] }, priority: 3 });
      return [
        [
          {
            runId,
            stageId,
            taskIds: [taskId],
            rolloutIds: [pendingId],
            labels: { which: 'pending' },
            minPriority: 2,
            maxRollouts: 4,
            workerId: 'another',
            leaseDuration: { seconds: 30n, nanos: 500_000_000 },
            wait: { seconds: 1n },
            requestId: randomUUID(),
          },
        ],
      ];
    },
    served: ([answer], { pendingId, taskId, stateId, lookId, runId }) => {
      const held = {
        id: pendingId,
        status: Status.INITIALIZING,
        attempt: 1,
        workerId: 'another',
        inputJson: '{"seed":1}',
      };
      expect(answer?.claims).toHaveLength(1);
      const [claim] = answer!.claims;
      expect(claim).toMatchObject({
        rollout: held,
        task: { id: taskId, inputJson: '{}' },
        maxTurns: 7n,
        truncated: false,
      });
      expect(claim?.trajectory).toMatchObject({ id: claim?.rollout?.trajectoryId, runId, taskId, nextStepNumber: 0n });
      expect(claim?.trajectory?.uid).toMatch(/./);
      expect(claim?.task?.validators).toMatchObject({ look: { id: lookId }, state: { id: stateId } });
      expect(answer?.drained).toBe(false);
    },
    refused: ({ stageId, rollouts }) => {
      const workerId = 'another';
      return {
        RUN_NOT_FOUND: [{ runId: NOBODY, workerId }],
        STAGE_NOT_FOUND: [{ stageId: NOBODY, workerId }],
        ROLLOUT_NOT_FOUND: [{ rolloutIds: [NOBODY], workerId }],
        REQUEST_ID_REUSED: async () => {
          const requestId = randomUUID();
          await rollouts.claimRollouts({ stageId, requestId, workerId });
          return [{ stageId, requestId, workerId: 'one more' }];
        },
      };
    },
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, LiveScene, RolloutScene>>;

export const HEARTBEAT_RPCS = {
  heartbeatRollouts: {
    requests: ({ heldId, failedId }) => [
      [
        {
          leases: [
            { rolloutId: heldId, attempt: 1 },
            { rolloutId: failedId, attempt: 1 },
            { rolloutId: NOBODY, attempt: 1 },
          ],
          // Shorter than the claim's.
          leaseDuration: { seconds: 30n },
        },
      ],
    ],
    served: ([answer], { heldId, failedId }) => {
      const kept = {
        rolloutId: heldId,
        attempt: 1,
        kept: true,
        status: Status.INITIALIZING,
        runStatus: Status.RUNNING,
      };
      const lost = { rolloutId: failedId, kept: false, status: Status.FAILED, runStatus: Status.RUNNING };
      const gone = { rolloutId: NOBODY, kept: false, status: Status.UNSPECIFIED, runStatus: Status.UNSPECIFIED };
      expect(answer?.leases).toMatchObject([kept, lost, gone]);
      expect(answer?.leases[0]?.remaining).toMatchObject({ seconds: 30n, nanos: 0 });
      expect(answer?.leases[1]?.remaining).toBeUndefined();
    },
    refused: () => ({}),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, RolloutScene>>;
