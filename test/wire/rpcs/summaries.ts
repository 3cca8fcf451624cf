import { expect } from 'vitest';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { type RunService, SummaryKey } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import type { RunScene } from './run_scene.ts';
import { LATE, LONG_AGO, NOBODY, type Rpcs } from './scene.ts';

export const SUMMARY_RPCS = {
  summarize: {
    requests: async ({ runId, experimentId, evalId, experimentName: taskId, rollouts }) => {
      await rollouts.upsertTasks({ tasks: [{ id: taskId }] });
      const made = [0n, 1n].map((number) => ({ groupNumber: 41n, number, taskId, labels: { trial: `t${number}` } }));
      await rollouts.createRollouts({ stageId: evalId, rollouts: made });
      const { claims } = await rollouts.claimRollouts({ stageId: evalId, maxRollouts: 2, workerId: 'worker' });
      for (const [i, { rollout }] of claims.entries()) {
        await rollouts.completeRollout({
          rolloutId: rollout!.id,
          attempt: rollout!.attempt,
          result: { reward: i, success: i === 1 },
          metrics: { tokens: 10 },
        });
      }
      const times = { createTimeFrom: LONG_AGO, createTimeTo: LATE };
      const some = { runIds: [runId], experimentId, stageKinds: [StageKind.EVAL], taskIds: [taskId], ...times };
      return [
        [{ ...some, runLabels: { label: 'value' }, labels: { trial: 't1' }, dimensions: [{ key: SummaryKey.NUMBER }] }],
        [{ runIds: [runId], dimensions: [{ key: SummaryKey.TASK }, { label: 'label' }], passAt: [1, 2, 3] }],
      ];
    },
    served: ([answer], { experimentName }) => {
      expect(answer?.truncated).toBe(false);
      const counts = { rolloutCount: 2n, completedCount: 2n, finished: true, judgedCount: 2n, successCount: 1n };
      const rewards = { rewardCount: 2n, rewardMean: 0.5, rewardMin: 0, rewardMedian: 0.5, rewardMax: 1 };
      const rest = { tokens: 20, tokensPerSuccess: 20, meanTurns: 0, unjudgedCount: 0n };
      expect(answer?.summaries).toMatchObject([{ values: [experimentName, 'value'], ...counts, ...rewards, ...rest }]);
      const [summary] = answer!.summaries;
      expect(summary?.successRate?.value).toBe(0.5);
      expect(summary?.successRate?.low).toBeCloseTo(0.0945, 4);
      expect([summary?.meanDuration, summary?.meanQueueTime]).not.toContain(undefined);
      expect(summary?.rewardStd).toBeCloseTo(Math.SQRT1_2, 12);
      expect(
        summary?.passAt.map(({ k, estimate, tasks, groupsExcluded }) => [k, estimate?.value, tasks, groupsExcluded]),
      ).toEqual([
        [1, 0.5, 1n, 0n],
        [2, 1, 1n, 0n],
        [3, undefined, 0n, 1n],
      ]);
    },
    refused: () => ({
      RUN_NOT_FOUND: [{ runIds: [NOBODY] }],
      EXPERIMENT_NOT_FOUND: [{ experimentId: NOBODY }],
    }),
  },
} satisfies Partial<Rpcs<typeof RunService.method, RunScene>>;
