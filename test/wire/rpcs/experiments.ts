import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import { type RunService, UpdateExperimentRequestSchema } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { IfExists, View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { claimOne, type RunScene } from './run_scene.ts';
import { NOBODY, type Rpcs } from './scene.ts';
import { pathsOf } from './shown.ts';

/** Every field of an experiment that a client sets. */
const FIELDS = {
  name: 'renamed',
  description: 'what it is about',
  environmentName: 'CartPole-v1',
  environmentConfigJson: '{"gravity":9.8}',
  agentType: 'pid',
  agentConfigJson: '[1]',
  defaultConfigJson: '{"lr":0.01}',
  maxSteps: 200n,
  seed: 42n,
  tags: ['control', 'classic'],
  metadataJson: '"anything"',
};

export const EXPERIMENT_RPCS = {
  createExperiment: {
    requests: () => [
      [
        {
          ...FIELDS,
          name: `made/${randomUUID()}`,
          experimentId: randomUUID(),
          requestId: randomUUID(),
          ifExists: IfExists.RETURN_EXISTING,
        },
      ],
    ],
    served: ([answer]) => {
      expect(answer?.experiment).toMatchObject({ ...FIELDS, name: expect.stringMatching(/^made/), runCount: 0n });
      expect(answer?.experiment?.createTime).toEqual(answer?.experiment?.updateTime);
    },
    refused: ({ experimentName, runs }) => ({
      EXPERIMENT_EXISTS: [{ name: experimentName }],
      REQUEST_ID_REUSED: async () => {
        const requestId = randomUUID();
        await runs.createExperiment({ requestId, name: randomUUID() });
        return [{ requestId, name: randomUUID() }];
      },
      EXPERIMENT_NOT_FOUND: async () => {
        const request = { requestId: randomUUID(), name: randomUUID() };
        const { experiment } = await runs.createExperiment(request);
        await runs.deleteExperiment({ experimentId: experiment!.id });
        return [request];
      },
    }),
  },
  getExperiment: {
    requests: ({ experimentId, experimentName }) => [[{ experimentId, view: View.BASIC }], [{ name: experimentName }]],
    served: ([answer], { experimentId, experimentName: name, environmentName }) => {
      const shown = { id: experimentId, name, environmentName, agentType: 'pid', tags: ['a', 'b'], runCount: 3n };
      expect(answer?.experiment).toMatchObject({ ...shown, defaultConfigJson: '{"lr":0.1,"seed":1}' });
    },
    refused: () => ({ EXPERIMENT_NOT_FOUND: [{ experimentId: NOBODY }] }),
  },
  listExperiments: {
    requests: async ({ environmentName, runs }) => {
      await runs.createExperiment({ name: randomUUID(), environmentName });
      const first = await runs.listExperiments({ environmentName, pageSize: 1 });
      return [
        [{ environmentName, agentType: 'pid', tags: ['b'], view: View.FULL, pageSize: 1 }],
        [{ environmentName, pageSize: 1, pageToken: first.nextPageToken }],
      ];
    },
    served: ([answer], { experimentId }) => {
      const shown = answer?.experiments.map((each) => [each.id, each.runCount, each.defaultConfigJson]);
      expect(shown).toEqual([[experimentId, 3n, '']]);
      expect(answer?.nextPageToken).toBe('');
    },
    refused: () => ({ INVALID_PAGE_TOKEN: [{ pageToken: 'none' }] }),
  },
  updateExperiment: {
    requests: ({ experimentId }) => [
      [
        {
          experimentId,
          updateMask: { paths: pathsOf(UpdateExperimentRequestSchema) },
          ...FIELDS,
          name: `renamed/${experimentId}`,
        },
      ],
    ],
    served: ([answer], { experimentId }) => {
      const now = { ...FIELDS, name: `renamed/${experimentId}`, id: experimentId, runCount: 3n };
      expect(answer?.experiment).toMatchObject(now);
    },
    refused: ({ experimentId, runs }) => ({
      EXPERIMENT_NOT_FOUND: [{ experimentId: NOBODY, updateMask: { paths: ['tags'] } }],
      EXPERIMENT_EXISTS: async () => {
        const { experiment } = await runs.createExperiment({ name: randomUUID() });
        return [{ experimentId, updateMask: { paths: ['name'] }, name: experiment!.name }];
      },
    }),
  },
  deleteExperiment: {
    requests: async (scene) => {
      await claimOne(scene, scene.evalId);
      return [[{ experimentId: scene.experimentId, onBranches: OnBranches.CASCADE, cancelLive: true }]];
    },
    served: ([answer]) => expect(answer).toMatchObject({ deletedRuns: 3n, deletedTrajectories: 3n }),
    refused: (scene) => ({
      EXPERIMENT_NOT_FOUND: [{ experimentId: NOBODY }],
      RUN_ACTIVE: async () => {
        await claimOne(scene, scene.evalId);
        return [{ experimentId: scene.experimentId }];
      },
    }),
  },
} satisfies Partial<Rpcs<typeof RunService.method, RunScene>>;
