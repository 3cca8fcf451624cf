import { expect } from 'vitest';
import type { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { CatalogueScene, RolloutScene } from './rollout_scene.ts';
import type { Rpcs } from './scene.ts';

const TASK = {
  name: 'Turn it off',
  description: 'Turn the thing off',
  difficulty: 'hard',
  category: 'settings',
  appName: 'Settings',
  sourceType: 'demo',
  maxTurns: 9n,
  inputJson: '{"start":"home"}',
  metadataJson: '[1]',
};

export const CATALOGUE_RPCS = {
  upsertTasks: {
    requests: ({ taskId }) => {
      const words = { tags: { values: ['x'] }, prerequisites: { values: ['signed in'] } };
      const web = { query: 'is it', method: 'GET', expectedResult: 'yes', configJson: '{"url":1}', advisory: true };
      return [
        [
          {
            tasks: [
              { id: `made/${taskId}`, ...TASK, ...words, validators: { web }, removedValidators: ['old'] },
              { id: taskId, name: 'named' },
              { id: taskId.toUpperCase() },
            ],
          },
        ],
      ];
    },
    served: ([answer]) => expect(answer).toMatchObject({ createdCount: 2, updatedCount: 1, unchangedCount: 0 }),
    refused: () => ({}),
  },
  getTask: {
    requests: ({ taskId }) => [[{ taskId, view: View.BASIC }], [{ taskId }]],
    served: ([answer], { taskId, stateId, lookId }) => {
      const shown = { id: taskId, difficulty: 'easy', tags: ['a', 'b'], maxTurns: 7n, inputJson: '{}', name: '' };
      const state = { id: stateId, query: 'what is', expectedResult: 'that', advisory: false };
      expect(answer?.task).toMatchObject({ ...shown, validators: { state, look: { id: lookId, advisory: true } } });
    },
    refused: () => ({ TASK_NOT_FOUND: [{ taskId: 'nobody' }] }),
  },
  listTasks: {
    requests: async ({ taskId, rollouts }) => {
      const tasks = [{ id: `${taskId}/2`, category: taskId, difficulty: 'easy', sourceType: 'demo' }];
      await rollouts.upsertTasks({ tasks });
      const first = await rollouts.listTasks({ category: taskId, pageSize: 1 });
      expect(first.tasks.map(({ id }) => id)).toEqual([`${taskId}/2`]);
      return [
        [{ taskIds: [taskId], difficulty: 'easy', tags: ['b'], view: View.FULL }],
        [{ sourceType: 'demo', category: taskId }],
        [{ category: taskId, pageSize: 1, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer], { taskId }) => {
      expect(answer?.tasks.map(({ id, inputJson }) => [id, inputJson])).toEqual([[taskId, '']]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: () => ({ INVALID_PAGE_TOKEN: [{ pageToken: 'none' }] }),
  },
} satisfies Partial<Rpcs<typeof RolloutService.method, CatalogueScene, RolloutScene>>;
