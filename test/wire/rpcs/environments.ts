import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import type { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { EnvironmentScene, RolloutScene } from './rollout_scene.ts';
import { LABELS, NOBODY, type Rpcs } from './scene.ts';

export const ENVIRONMENT_RPCS = {
  upsertEnvironment: {
    requests: ({ runId, newEnvironmentId }) => [
      [{ runId, environmentId: randomUUID(), type: 'linux' }],
      [
        {
          runId,
          environmentId: newEnvironmentId,
          type: 'linux',
          externalId: 'box-1',
          status: Status.RUNNING,
          message: 'why',
          metadataJson: '{"how":1}',
          phase: 'somewhere',
          labels: { values: { ...LABELS, more: 'yes' } },
          configJson: '{"cpu":2}',
        },
      ],
    ],
    served: ([answer], { runId, newEnvironmentId: id }) => {
      const given = { type: 'linux', externalId: 'box-1', phase: 'somewhere', configJson: '{"cpu":2}' };
      const status = { status: Status.RUNNING, statusMessage: 'why' };
      expect(answer?.environment).toMatchObject({ id, runId, ...given, ...status, labels: { ...LABELS, more: 'yes' } });
      expect(answer?.created).toBe(false);
      expect(answer?.environment?.startTime).toBeDefined();
    },
    refused: ({ runId, environmentId, endedEnvironmentId, runs }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY, environmentId: randomUUID() }],
      ENVIRONMENT_EXISTS: async () => [{ runId: (await runs.createRun({})).run!.id, environmentId }],
      ILLEGAL_TRANSITION: [{ runId, environmentId: endedEnvironmentId, status: Status.RUNNING }],
      RESULT_CONFLICT: [{ runId, environmentId: endedEnvironmentId, message: 'for another reason' }],
    }),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, EnvironmentScene, RolloutScene>>;

/** Read after rollouts have used environments. */
export const ENVIRONMENT_LIST_RPCS = {
  listEnvironments: {
    requests: async ({ runId, doneId, environmentId, rollouts }) => {
      const first = await rollouts.listEnvironments({ runId, pageSize: 2 });
      expect(first.environments[0]?.id).toBe(environmentId);
      const used = await rollouts.listEnvironments({ rolloutId: doneId });
      expect(used.environments.map(({ id }) => id)).toEqual([environmentId]);
      return [
        [{ rolloutId: doneId, attempt: 1, environmentIds: [environmentId], statuses: [Status.RUNNING] }],
        [{ runId, pageSize: 2, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer], { endedEnvironmentId }) => {
      expect(answer?.environments.map(({ id }) => id)).toEqual([endedEnvironmentId]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: ({ runId }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      ROLLOUT_NOT_FOUND: [{ rolloutId: NOBODY }],
      INVALID_PAGE_TOKEN: [{ runId, pageToken: 'none' }],
    }),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, RolloutScene>>;
