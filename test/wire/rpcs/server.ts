import { expect } from 'vitest';
import type { ServerService, WatchResponse } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { claimOne, makeEval } from './run_scene.ts';
import { NOBODY, type Rpcs } from './scene.ts';

export const SERVER_RPCS: Rpcs<typeof ServerService.method> = {
  getServerInfo: {
    requests: () => [[{}]],
    served: ([answer]) => {
      expect(answer?.version).toMatch(/^\d+\.\d+\.\d+$/);
      expect(answer?.limits).toMatchObject({ maxPageSize: 1000n });
    },
    refused: () => ({}),
  },
  watch: {
    requests: async (scene) => {
      const { experimentId, id, branchId, task, runs } = scene;
      const { run } = await runs.createRun({ experimentId, initialStatus: Status.RUNNING });
      const runId = run!.id;
      await claimOne(scene, await makeEval(scene, runId));
      await runs.logMetrics({ runId, points: [{ key: 'loss', metricStep: 3n, value: 0.5 }] });
      const subjects = {
        run: { run: { runId, allStages: true, rollouts: true, series: true, untilTerminal: true } },
        page: { runs: { experimentId, pageSize: 1 } },
        tree: { tree: { treeId: id } },
        chosen: { tree: { trajectoryIds: [branchId] } },
        roots: { trajectories: { taskId: task, rootsOnly: true } },
      };
      return [[{ subjects }]];
    },
    served: (answers, { id, branchId }) => {
      expect(
        answers
          .filter(({ caughtUp }) => caughtUp)
          .map(({ name }) => name)
          .sort(),
      ).toEqual(['run', 'page', 'tree', 'chosen', 'roots'].sort());
      expectRun(answers.flatMap(({ run }) => run ?? []));
      const of = (name: string) => answers.filter((answer) => answer.name === name);
      const runId = of('run')[0]?.run?.run?.id;
      expect(of('page')).toMatchObject([{ runs: { runs: [{ run: { id: runId } }], page: { runIds: [runId] } } }]);
      const branch = { trajectory: { id: branchId }, gain: 3, gainSteps: 1n };
      expect(of('tree')).toMatchObject([{ tree: { nodes: [{ trajectory: { id } }, branch], removedIds: [] } }]);
      expect(of('chosen')).toMatchObject([{ tree: { nodes: [branch] } }]);
      const page = { trajectories: [{ id, metadataJson: '' }], page: { trajectoryIds: [id] } };
      expect(of('roots')).toMatchObject([{ trajectories: page }]);
    },
    refused: () => ({
      RUN_NOT_FOUND: [{ subjects: { it: { run: { runId: NOBODY } } } }],
      TRAJECTORY_NOT_FOUND: [{ subjects: { it: { tree: { treeId: NOBODY } } } }],
      EXPERIMENT_NOT_FOUND: [{ subjects: { it: { runs: { experimentId: NOBODY } } } }],
      INVALID_PAGE_TOKEN: [{ subjects: { it: { trajectories: { pageToken: 'none' } } } }],
    }),
  },
};

function expectRun(changes: readonly NonNullable<WatchResponse['run']>[]): void {
  expect(changes[0]).toMatchObject({ run: { status: Status.RUNNING, configJson: '' } });
  expect(changes[0]?.progress?.kinds).toMatchObject([{ rolloutsCreated: 1n }]);
  expect(changes.flatMap(({ groups }) => groups)).toMatchObject([{ number: 0n, status: Status.RUNNING }]);
  expect(changes.flatMap(({ rollouts }) => rollouts)).toMatchObject([{ status: Status.INITIALIZING, attempt: 1 }]);
  const loss = { stageId: '', key: 'loss', pointCount: 1n, lastMetricStep: 3n, lastValue: 0.5, changedFrom: 3n };
  expect(changes.flatMap(({ series }) => series)).toMatchObject([loss]);
}
