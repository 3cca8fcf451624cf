import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError, type ConnectRouter, createConnectRouter } from '@connectrpc/connect';
import { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import {
  ServerService,
  type WatchResponseSchema,
  type WatchSubject,
} from '../../../gen/es/anabranch/v1/server_service_pb.js';
import type { Trajectory } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema } from '../../../gen/es/google/rpc/error_details_pb.js';
import type { StateAt } from '../api.ts';
import { type Recorded, stepAt } from './recorded.ts';
import { seriesOf } from './series.ts';

/** Watches send a message before the page considers them lost. */
const SIGN_OF_LIFE_MS = 10_000;

const WITHOUT_STATES = 'This file was made without states. To include them, make it with --with-states.';

/** Answers the calls of the page from a file. Calls that the file cannot answer fail with UNIMPLEMENTED. */
export function createFileRouter(recorded: Recorded): ConnectRouter {
  const router = createConnectRouter();
  serveTrajectories(router, recorded);
  serveRuns(router, recorded);
  serveRollouts(router, recorded);
  serveWatches(router, recorded);
  return router;
}

function serveTrajectories(router: ConnectRouter, recorded: Recorded): void {
  const { nodes, blobs } = recorded;
  router.service(TrajectoryService, {
    getTrajectory({ trajectoryId }) {
      const trajectory = nodes.get(trajectoryId)?.trajectory;
      if (trajectory === undefined) throw absent('TRAJECTORY_NOT_FOUND', `The file has no trajectory ${trajectoryId}.`);
      return { trajectory };
    },
    listTrajectories: () => ({ trajectories: rootsOf(recorded) }),
    getStep({ trajectoryId, stepNumber = -1n }) {
      const found = stepAt(recorded, trajectoryId, stepNumber);
      if (found === undefined) throw absent('STEP_NOT_FOUND', `The file has no step ${stepNumber} of this trajectory.`);
      return { trajectoryId: found.owner, step: found.step };
    },
    getCheckpoint({ trajectoryId, stepNumber, atOrBefore }) {
      const last = stepNumber ?? atOrBefore ?? (nodes.get(trajectoryId)?.trajectory?.nextStepNumber ?? 0n) - 1n;
      for (let at = last; at >= 0n; at -= 1n) {
        const found = stepAt(recorded, trajectoryId, at);
        const stored = found?.step.states ?? [];
        if (stored.length > 0 && blobs.size === 0) throw absent('STATE_NOT_FOUND', WITHOUT_STATES);
        // Without their bytes, states are not shown.
        const states = stored.flatMap((state) => {
          const data = blobs.get(state.digest);
          return data === undefined ? [] : { ...state, data };
        });
        if (found !== undefined && states.length > 0) {
          return { trajectoryId: found.owner, step: { ...found.step, states } };
        }
        if (stepNumber !== undefined) break;
      }
      throw absent('CHECKPOINT_NOT_FOUND', 'The file has no states of this step.');
    },
    async *readStepSeries(request) {
      for (const series of seriesOf(recorded, request)) yield { series: [series] };
    },
    async *readTrajectories({ trajectoryIds }) {
      for (const id of trajectoryIds) {
        const trajectory = nodes.get(id)?.trajectory;
        if (trajectory === undefined) continue;
        yield { trajectory, steps: recorded.steps.get(id) ?? [], ownerId: id, trajectoryDone: true };
      }
    },
  });
}

/** Returns the bytes of a state, undefined if the file does not have them. */
export function stateBytes(recorded: Recorded, { trajectoryId, stepNumber, name }: StateAt): Uint8Array | undefined {
  const step = stepAt(recorded, trajectoryId, stepNumber)?.step;
  return recorded.blobs.get(step?.states.find((state) => state.name === name)?.digest ?? '');
}

function serveRuns(router: ConnectRouter, recorded: Recorded): void {
  router.service(RunService, {
    async *readMetrics({ runIds, startMetricStep, endMetricStep }) {
      for (const { series } of recorded.metrics) {
        for (const each of series) {
          if (!runIds.includes(each.runId)) continue;
          const kept = [...each.metricSteps.keys()].filter((at) => {
            const step = each.metricSteps[at] ?? 0n;
            return step >= (startMetricStep ?? step) && step < (endMetricStep ?? step + 1n);
          });
          const metricSteps = kept.map((at) => each.metricSteps[at] ?? 0n);
          yield { series: [{ ...each, metricSteps, values: kept.map((at) => each.values[at] ?? 0) }] };
        }
      }
    },
    compareRuns: () => ({ comparisons: [{ configDifferences: recorded.differences }] }),
  });
}

function serveWatches(router: ConnectRouter, recorded: Recorded): void {
  router.service(ServerService, {
    async *watch({ subjects }, { signal }) {
      for (const [name, subject] of Object.entries(subjects)) {
        const responses = responsesOf(recorded, subject);
        for (const [at, response] of responses.entries()) {
          yield { name, ...response, caughtUp: at === responses.length - 1 };
        }
      }
      while (!signal.aborted) {
        await wait(SIGN_OF_LIFE_MS, signal);
        if (!signal.aborted) yield {};
      }
    },
  });
}

function serveRollouts(router: ConnectRouter, { rollouts, overrides, runChanges }: Recorded): void {
  const groups = runChanges.flatMap((changes) => changes.groups);
  router.service(RolloutService, {
    getRollout({ rolloutId }) {
      const found = rollouts.get(rolloutId);
      if (found === undefined) throw absent('ROLLOUT_NOT_FOUND', `The file has no rollout ${rolloutId}.`);
      return found;
    },
    listValidationOverrides: ({ rolloutId }) => overrides.get(rolloutId) ?? {},
    getGroup({ groupId }) {
      const group = groups.find(({ id }) => id === groupId);
      if (group === undefined) throw absent('GROUP_NOT_FOUND', `The file has no group ${groupId}.`);
      return { group };
    },
    listRollouts: ({ groupId }) => ({
      rollouts: [...rollouts.values()].flatMap(({ rollout }) => (rollout?.groupId === groupId ? rollout : [])),
    }),
  });
}

type Sent = MessageInitShape<typeof WatchResponseSchema>;

/** Returns the snapshot of a subject. */
function responsesOf(recorded: Recorded, { run, runs, tree }: WatchSubject): Sent[] {
  if (run !== undefined) return runResponses(recorded, run.runId);
  if (runs !== undefined) return [runPage(recorded)];
  if (tree !== undefined) return [treeNodes(recorded, tree.treeId)];
  const trajectories = rootsOf(recorded);
  return [{ trajectories: { trajectories, page: { trajectoryIds: trajectories.map(({ id }) => id) } } }];
}

function treeNodes({ nodes }: Recorded, treeId: string): Sent {
  const root = nodes.get(treeId)?.trajectory?.treeId;
  const found = [...nodes.values()].filter(({ trajectory }) => trajectory?.treeId === root);
  if (found.length > 0) return { tree: { nodes: found } };
  return failure('TRAJECTORY_NOT_FOUND', `The file has no trajectory ${treeId}.`);
}

function runResponses({ runChanges }: Recorded, runId: string): Sent[] {
  if (runChanges.some(({ run }) => run?.id === runId)) return runChanges.map((run) => ({ run }));
  return [failure('RUN_NOT_FOUND', `The file has no run ${runId}.`)];
}

function runPage({ runChanges }: Recorded): Sent {
  const run = runChanges.find((changes) => changes.run !== undefined)?.run;
  const progress = runChanges.find((changes) => changes.progress !== undefined)?.progress;
  const runs = run === undefined ? [] : [{ run, ...(progress === undefined ? {} : { progress }) }];
  return { runs: { runs, page: { runIds: runs.map((each) => each.run.id) } } };
}

function rootsOf({ nodes }: Recorded): Trajectory[] {
  return [...nodes.values()].flatMap(({ trajectory }) => (trajectory?.parentId === '' ? trajectory : []));
}

function wait(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => resolve(clearTimeout(timer)), { once: true });
  });
}

function failure(reason: string, message: string): Sent {
  return { error: { code: Code.NotFound, reason, message } };
}

function absent(reason: string, message: string): ConnectError {
  const info = { desc: ErrorInfoSchema, value: { reason, domain: 'anabranch.v1' } };
  return new ConnectError(message, Code.NotFound, undefined, [info]);
}
