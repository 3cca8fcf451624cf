import { type Client, Code } from '@connectrpc/connect';
import { expect } from 'vitest';
import type { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { type BadCall, INVALID } from './bad_call.ts';
import type { RunScene } from './rpcs/run_scene.ts';
import { NOBODY } from './rpcs/scene.ts';
import { collect } from './story.ts';

type Bad = BadCall<RunScene>;
type Runs = Client<typeof RunService>;

const point = (key: string) => ({ key, value: 1 });

export const SERIES: readonly Bad[] = [
  {
    what: 'metric with a key of 10 KB',
    call: ({ runs, runId }) => runs.logMetrics({ runId, points: [point('a'), point('k'.repeat(10_000))] }),
    ...INVALID,
    field: 'points[1].key',
  },
  {
    what: 'metric without a key',
    call: ({ runs, runId }) => runs.logMetrics({ runId, points: [point('')] }),
    ...INVALID,
    field: 'points[0].key',
  },
  {
    what: 'no points',
    call: ({ runs, runId }) => runs.logMetrics({ runId, points: [] }),
    ...INVALID,
    field: 'points',
  },
  {
    what: 'more points than one call may hold',
    call: ({ runs, runId }) =>
      runs.logMetrics({ runId, points: Array.from({ length: LIMITS.metricPoints + 1 }, () => point('a')) }),
    ...INVALID,
    field: 'points',
  },
  {
    what: 'a quarter of a million points in one call',
    call: ({ runs, runId }) => runs.logMetrics({ runId, points: Array.from({ length: 250_000 }, () => point('a')) }),
    code: Code.ResourceExhausted,
    reason: 'MESSAGE_TOO_LARGE',
    text: 'larger than 1048576 bytes: send fewer steps, points or rollouts',
  },
  {
    what: 'series downsampled to three points',
    call: ({ runs, runId }) => collect(runs.readMetrics({ runIds: [runId], maxPoints: 3 })),
    ...INVALID,
    field: 'max_points',
  },
  {
    what: 'series of a range that ends before it starts',
    call: ({ runs, runId }) => collect(runs.readMetrics({ runIds: [runId], startMetricStep: 2n, endMetricStep: 1n })),
    ...INVALID,
    field: 'end_metric_step',
  },
  {
    what: 'series of a run twice',
    call: ({ runs, runId }) => collect(runs.readMetrics({ runIds: [runId, runId.toUpperCase()] })),
    ...INVALID,
    field: 'run_ids',
  },
  {
    what: 'series of 101 runs',
    call: ({ runs }) => collect(runs.readMetrics({ runIds: Array.from({ length: 101 }, () => crypto.randomUUID()) })),
    ...INVALID,
    field: 'run_ids',
  },
  {
    what: 'series of a stage and of the run itself',
    call: ({ runs, runId, evalId }) =>
      collect(runs.readMetrics({ runIds: [runId], stageId: evalId, runLevelOnly: true })),
    ...INVALID,
    field: 'run_level_only',
  },
  {
    what: 'steps of a run that does not exist',
    call: ({ trajectories }) => trajectories.listSteps({ runId: NOBODY }),
    code: Code.NotFound,
    reason: 'RUN_NOT_FOUND',
    field: 'run_id',
  },
  {
    what: 'steps of an experiment that does not exist',
    call: ({ trajectories }) => trajectories.listSteps({ experimentId: NOBODY }),
    code: Code.NotFound,
    reason: 'EXPERIMENT_NOT_FOUND',
    field: 'experiment_id',
  },
  {
    what: 'watch of a run that does not exist',
    call: ({ runs }) => collect(runs.watchRun({ runId: NOBODY })),
    code: Code.NotFound,
    reason: 'RUN_NOT_FOUND',
  },
];

const WRONG_PAGE = { code: Code.InvalidArgument, reason: 'INVALID_PAGE_TOKEN', field: 'page_token' } as const;
const firstOfRuns = async (runs: Runs, experimentId: string): Promise<string> => {
  const { nextPageToken } = await runs.listRuns({ experimentId, pageSize: 1 });
  expect(nextPageToken).not.toBe('');
  return nextPageToken;
};

export const PAGES: readonly Bad[] = [
  {
    what: 'page token of another list',
    call: async ({ runs, experimentId, runId }) =>
      runs.listStages({ runId, pageToken: await firstOfRuns(runs, experimentId) }),
    ...WRONG_PAGE,
  },
  {
    what: 'page token of another filter',
    call: async ({ runs, experimentId }) =>
      runs.listRuns({ experimentId, rootsOnly: true, pageToken: await firstOfRuns(runs, experimentId) }),
    ...WRONG_PAGE,
  },
  {
    what: 'page token of another view',
    call: async ({ runs, experimentId }) =>
      runs.listRuns({ experimentId, view: View.FULL, pageToken: await firstOfRuns(runs, experimentId) }),
    ...WRONG_PAGE,
  },
  {
    what: 'page token of the history of another run',
    call: async ({ runs, branchId, runId }) => {
      const { nextPageToken } = await runs.listStatusChanges({ runId: branchId, pageSize: 1 });
      return runs.listStatusChanges({ runId, pageToken: nextPageToken });
    },
    ...WRONG_PAGE,
  },
  {
    what: 'page token of the tree of a run, for the trees of its experiment',
    call: async ({ runs, branchId, experimentId }) => {
      const { nextPageToken } = await runs.getRunTree({ runId: branchId, pageSize: 1 });
      return runs.getRunTree({ experimentId, pageToken: nextPageToken });
    },
    ...WRONG_PAGE,
  },
  {
    what: 'invalid page token',
    call: ({ runs, runId }) => runs.getRunTree({ runId, pageToken: 'nonsense' }),
    ...WRONG_PAGE,
  },
];
