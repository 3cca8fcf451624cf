import { expect } from 'vitest';
import type { RunService } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import type { RunScene } from './run_scene.ts';
import { NOBODY, type Rpcs } from './scene.ts';

export const METRIC_RPCS = {
  logMetrics: {
    requests: ({ runId, evalId }) => [
      [
        {
          runId,
          points: [
            { key: 'loss', metricStep: 3n, value: Number.NaN },
            { key: 'score', metricStep: -1n, value: Infinity, stageId: evalId },
          ],
        },
      ],
    ],
    served: (answers) => expect(answers).toHaveLength(1),
    refused: ({ runId }) => ({
      RUN_NOT_FOUND: [{ runId: NOBODY, points: [{ key: 'loss' }] }],
      STAGE_NOT_FOUND: [{ runId, points: [{ key: 'loss', stageId: NOBODY }] }],
    }),
  },
  readMetrics: {
    requests: ({ runId, branchId, evalId }) => [
      [
        {
          runIds: [runId],
          keys: ['score'],
          stageId: evalId,
          startMetricStep: -9n,
          endMetricStep: 9n,
          maxPoints: 4,
        },
      ],
      [{ runIds: [branchId, runId], runLevelOnly: true, maxPoints: 4 }],
    ],
    served: (answers, { runId }) => {
      const loss = { runId, stageId: '', key: 'loss', pointCount: 3n, nanCount: 0n };
      expect(answers).toMatchObject([{ series: [{ ...loss, metricSteps: [0n, 1n, 2n], values: [1, 1 / 2, 1 / 3] }] }]);
    },
    refused: ({ runId }) => ({ RUN_NOT_FOUND: [{ runIds: [runId, NOBODY] }] }),
  },
} satisfies Partial<Rpcs<typeof RunService.method, RunScene>>;
