import { expect } from 'vitest';
import { OnSuccess } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { LiveScene, RolloutScene } from './rollout_scene.ts';
import { LABELS, NOBODY, type Rpcs } from './scene.ts';

const GIVEN = { batch: 3n, onSuccess: OnSuccess.CANCEL_PENDING, metadataJson: '{"by":"test"}' };

export const GROUP_RPCS = {
  upsertGroup: {
    requests: ({ stageId }) => [
      [{ stageId, number: 2n }],
      [{ stageId, number: 2n, ...GIVEN, labels: { values: LABELS }, metrics: { speed: 0.5 } }],
    ],
    served: ([answer], { runId, stageId }) => {
      const given = { ...GIVEN, labels: LABELS, metrics: { speed: 0.5 } };
      expect(answer?.group).toMatchObject({ runId, stageId, number: 2n, ...given, status: Status.PENDING });
      expect(answer?.created).toBe(false);
    },
    refused: () => ({ STAGE_NOT_FOUND: [{ stageId: NOBODY, number: 0n }] }),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, LiveScene, RolloutScene>>;

export const GROUP_READ_RPCS = {
  getGroup: {
    requests: ({ stageId, liveGroupId }) => [[{ groupId: liveGroupId, view: View.BASIC }], [{ stageId, number: 0n }]],
    served: ([answer], { endedGroupId, doneId }) => {
      expect(answer?.group).toMatchObject({ id: endedGroupId, number: 0n, status: Status.COMPLETED });
      const counts = { rolloutCount: 2n, completedCount: 1n, failedCount: 1n, pendingCount: 0n, liveCount: 0n };
      const verdicts = { judgedCount: 2n, successCount: 1n, successRate: 0.5 };
      expect(answer?.group?.statistics).toMatchObject({ ...counts, ...verdicts, bestReward: 3, bestRolloutId: doneId });
    },
    refused: ({ stageId }) => ({ GROUP_NOT_FOUND: [{ stageId, number: 9n }] }),
  },
  listGroups: {
    requests: async ({ stageId, endedGroupId, rollouts }) => {
      const first = await rollouts.listGroups({ stageId, pageSize: 1 });
      expect(first.groups.map(({ id }) => id)).toEqual([endedGroupId]);
      return [[{ stageId, view: View.FULL }], [{ stageId, pageSize: 1, pageToken: first.nextPageToken }]];
    },
    served: ([answer], { liveGroupId }) => {
      const statistics = { rolloutCount: 3n, pendingCount: 1n, liveCount: 2n };
      expect(answer?.groups).toMatchObject([{ id: liveGroupId, number: 1n, status: Status.RUNNING, statistics }]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ stageId }) => ({
      STAGE_NOT_FOUND: [{ stageId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ stageId, pageToken: 'none' }],
    }),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, RolloutScene>>;
