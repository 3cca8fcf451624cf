import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import type { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { EnvironmentScene, RolloutScene } from './rollout_scene.ts';
import { LABELS, NOBODY, type Rpcs } from './scene.ts';

const SAID = { message: 'why', metadataJson: '{"how":1}', phase: 'somewhere' };

interface Moved {
  readonly environment?: { readonly id: string; readonly status: Status } | undefined;
}

interface Of {
  ready(scene: EnvironmentScene): Promise<string> | string;
  readonly illegal: 'newEnvironmentId' | 'endedEnvironmentId';
}

/** A verb: the status of the environment that it accepts and the one that it refuses. */
function verb(status: Status, of: Of) {
  return {
    requests: async (scene: EnvironmentScene) => [[{ environmentId: await of.ready(scene), ...SAID }]],
    served: ([answer]: Moved[]) => {
      expect(answer?.environment).toMatchObject({ status, statusMessage: 'why', phase: 'somewhere' });
    },
    refused: (scene: EnvironmentScene) => ({
      ENVIRONMENT_NOT_FOUND: [{ environmentId: NOBODY }],
      ILLEGAL_TRANSITION: [{ environmentId: scene[of.illegal] }],
    }),
  };
}

/** A terminal verb, which refuses a repetition with another message. */
function ending(
  status: Status,
  of: Of & { readonly again: 'endedEnvironmentId' | ((scene: EnvironmentScene) => Promise<string>) },
) {
  const plain = verb(status, of);
  const again = (environmentId: string) => [{ environmentId, message: 'for another reason' }];
  return {
    ...plain,
    refused: (scene: EnvironmentScene) => {
      const { again: ended } = of;
      return {
        ...plain.refused(scene),
        RESULT_CONFLICT: typeof ended === 'string' ? again(scene[ended]) : async () => again(await ended(scene)),
      };
    },
  };
}

const MAKING = {
  type: 'linux',
  externalId: 'box-1',
  initialStatus: Status.INITIALIZING,
  labels: LABELS,
  configJson: '{"cpu":2}',
  phase: 'booting',
};

export const ENVIRONMENT_RPCS = {
  createEnvironment: {
    requests: ({ runId }) => [[{ ...MAKING, runId, environmentId: randomUUID(), requestId: randomUUID() }]],
    served: ([answer], { runId }) => {
      const { initialStatus: status, ...given } = MAKING;
      expect(answer?.environment).toMatchObject({ ...given, status, runId });
    },
    refused: ({ runId, environmentId, runs, rollouts }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      ENVIRONMENT_EXISTS: [{ runId, environmentId }],
      REQUEST_ID_REUSED: async () => {
        const requestId = randomUUID();
        await rollouts.createEnvironment({ requestId, runId });
        return [{ requestId, runId, type: 'other' }];
      },
      ENVIRONMENT_NOT_FOUND: async () => {
        const { run } = await runs.createRun({});
        const request = { requestId: randomUUID(), runId: run!.id };
        await rollouts.createEnvironment(request);
        await runs.deleteRun({ runId: run!.id });
        return [request];
      },
    }),
  },
  getEnvironment: {
    requests: ({ environmentId }) => [[{ environmentId }]],
    served: ([answer], { environmentId: id, runId }) => {
      expect(answer?.environment).toMatchObject({ id, runId, type: 'android', status: Status.RUNNING, labels: LABELS });
      expect(answer?.environment?.startTime).toBeDefined();
    },
    refused: () => ({ ENVIRONMENT_NOT_FOUND: [{ environmentId: NOBODY }] }),
  },
  startEnvironment: {
    ...verb(Status.RUNNING, { ready: ({ newEnvironmentId }) => newEnvironmentId, illegal: 'endedEnvironmentId' }),
    requests: ({ newEnvironmentId }) => [[{ environmentId: newEnvironmentId, ...SAID, externalId: 'box-2' }]],
  },
  pauseEnvironment: verb(Status.PAUSED, { ready: ({ environmentId }) => environmentId, illegal: 'newEnvironmentId' }),
  resumeEnvironment: verb(Status.RUNNING, {
    ready: async ({ environmentId, rollouts }) => {
      await rollouts.pauseEnvironment({ environmentId });
      return environmentId;
    },
    illegal: 'newEnvironmentId',
  }),
  completeEnvironment: ending(Status.COMPLETED, {
    ready: ({ environmentId }) => environmentId,
    again: 'endedEnvironmentId',
    illegal: 'newEnvironmentId',
  }),
  failEnvironment: ending(Status.FAILED, {
    ready: ({ environmentId }) => environmentId,
    again: async ({ newEnvironmentId: environmentId, rollouts }) => {
      await rollouts.failEnvironment({ environmentId, message: 'for one reason' });
      return environmentId;
    },
    illegal: 'endedEnvironmentId',
  }),
  cancelEnvironment: ending(Status.CANCELLED, {
    ready: ({ environmentId }) => environmentId,
    again: async ({ newEnvironmentId: environmentId, rollouts }) => {
      await rollouts.cancelEnvironment({ environmentId, message: 'for one reason' });
      return environmentId;
    },
    illegal: 'endedEnvironmentId',
  }),
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
        [{ rolloutId: doneId, statuses: [Status.RUNNING] }],
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
