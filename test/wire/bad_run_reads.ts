import { type Client, Code } from '@connectrpc/connect';
import { expect } from 'vitest';
import type { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { type BadCall, INVALID } from './bad_call.ts';
import type { RunScene } from './rpcs/run_scene.ts';
import { collect } from './story.ts';

type Bad = BadCall<RunScene>;
type Runs = Client<typeof RunService>;

export const SERIES: readonly Bad[] = [
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
    what: 'series of a stage and of the run itself',
    call: ({ runs, runId, evalId }) =>
      collect(runs.readMetrics({ runIds: [runId], stageId: evalId, runLevelOnly: true })),
    ...INVALID,
    field: 'run_level_only',
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
];
