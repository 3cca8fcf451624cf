import { expect } from 'vitest';
import type { RetentionService } from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { OnBranches } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LATE, NOBODY, type Rpcs } from './scene.ts';

const DAY = { seconds: 86_400n, nanos: 1 };
const INTERVAL = { seconds: 86_400n };
const STATES = {
  stateNames: ['memory'],
  contentMediaTypes: ['image/png'],
  keepLast: 1n,
  keepEvery: 2n,
  olderThan: DAY,
  includeTagged: true,
  includeBranchPoints: true,
  includeTerminal: true,
};
const TRAJECTORIES = {
  statuses: [Status.COMPLETED],
  labels: { label: 'no such' },
  keepLast: 3n,
  olderThan: DAY,
  includeTagged: true,
  onBranches: OnBranches.CASCADE,
};
const REFUSED = {
  RUN_NOT_FOUND: [{ policy: { runId: NOBODY, ...states(STATES) } }],
  EXPERIMENT_NOT_FOUND: [{ policy: { experimentId: NOBODY, ...states(STATES) } }],
  INVALID_REQUEST: [{ policy: { ...states(STATES), trajectories: TRAJECTORIES } }],
};

function states<Given>(given: Given): { readonly states: Given } {
  return { states: given };
}

export const RETENTION_RPCS: Rpcs<typeof RetentionService.method> = {
  planRetention: {
    requests: ({ experimentId, runId }) => [
      [{ policy: { experimentId, trajectories: TRAJECTORIES } }],
      [{ policy: { runId, ...states(STATES) } }],
      [{ policy: states({ stateNames: ['env', 'memory'] }) }],
    ],
    served: (answers, { id }) => {
      expect(answers[0]?.asOf).toEqual(answers.at(-1)?.asOf);
      const items = answers.flatMap((answer) => answer.items).filter((item) => item.trajectoryId === id);
      // Step 1 is tagged, and a branch point.
      expect(items.map(({ stepNumber, stateNames, pins }) => [stepNumber, stateNames, pins.length])).toEqual([
        [2n, ['env', 'memory'], 0],
        [1n, [], 2],
      ]);
      expect(answers.at(-1)?.totals).toMatchObject({ trajectories: 0n, steps: 0n });
    },
    refused: () => REFUSED,
  },
  applyRetention: {
    requests: ({ experimentId, runId }) => [
      [{ policy: { experimentId, trajectories: TRAJECTORIES } }],
      [{ policy: { runId, ...states(STATES) }, asOf: LATE }],
      [{ policy: states({ stateNames: ['env', 'memory'], includeTagged: true, includeBranchPoints: true }) }],
    ],
    served: (answers, { id }) => {
      const items = answers.flatMap((answer) => answer.items).filter((item) => item.trajectoryId === id);
      expect(items.map(({ stepNumber, pins }) => [stepNumber, pins])).toEqual([
        [1n, []],
        [2n, []],
      ]);
      expect(answers.at(-1)?.totals?.states).toBeGreaterThanOrEqual(3n);
    },
    refused: () => REFUSED,
  },
  setRetentionPolicy: {
    requests: ({ experimentId, runId }) => [
      [{ name: 'rpcs/trajectories', policy: { experimentId, trajectories: TRAJECTORIES }, interval: INTERVAL }],
      [{ name: 'rpcs/states', policy: { runId, ...states(STATES) }, interval: INTERVAL }],
    ],
    served: ([answer], { runId }) => {
      const { name, policy, interval, createTime, dueTime, lastExecution } = answer!.retentionPolicy!;
      expect([name, interval?.seconds, lastExecution]).toEqual(['rpcs/states', 86_400n, undefined]);
      expect(policy).toMatchObject({ runId, experimentId: '', ...states(STATES) });
      expect(dueTime).toEqual(createTime);
    },
    refused: () => ({
      RUN_NOT_FOUND: [{ name: 'p', policy: { runId: NOBODY, ...states(STATES) }, interval: INTERVAL }],
      EXPERIMENT_NOT_FOUND: [{ name: 'p', policy: { experimentId: NOBODY, ...states(STATES) }, interval: INTERVAL }],
      INVALID_REQUEST: [{ name: 'p', policy: states(STATES) }],
    }),
  },
  listRetentionPolicies: {
    requests: async ({ runId, retention }) => {
      const policy = { runId, ...states(STATES) };
      for (const name of ['rpcs/a', 'rpcs/b']) await retention.setRetentionPolicy({ name, policy, interval: INTERVAL });
      const first = await retention.listRetentionPolicies({ pageSize: 1 });
      return [[{ pageSize: 1, pageToken: first.nextPageToken }], [{ pageSize: 1000 }]];
    },
    served: ([answer]) => {
      const names = answer!.retentionPolicies.map(({ name }) => name);
      expect(names.filter((name) => /^rpcs\/[ab]$/.test(name))).toEqual(['rpcs/a', 'rpcs/b']);
    },
    refused: () => ({ INVALID_PAGE_TOKEN: [{ pageToken: 'none' }] }),
  },
  deleteRetentionPolicy: {
    requests: async ({ runId, retention }) => {
      await retention.setRetentionPolicy({ name: 'rpcs/c', policy: { runId, ...states(STATES) }, interval: INTERVAL });
      return [[{ name: 'rpcs/c' }]];
    },
    served: ([answer]) => expect(answer).toBeDefined(),
    refused: () => ({ RETENTION_POLICY_NOT_FOUND: [{ name: 'no such' }] }),
  },
};
