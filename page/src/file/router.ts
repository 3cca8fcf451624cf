import { create, type DescMethodServerStreaming, fromBinary, type MessageShape, toBinary } from '@bufbuild/protobuf';
import { Code, ConnectError, type ConnectRouter, createConnectRouter, type HandlerContext } from '@connectrpc/connect';
import { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import {
  RunService,
  type WatchRunRequest,
  type WatchRunResponse,
  type WatchRunsResponse,
  WatchRunsResponseSchema,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import type { Trajectory } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  TrajectoryService,
  type WatchTrajectoriesResponse,
  WatchTrajectoriesResponseSchema,
  type WatchTreeRequest,
  type WatchTreeResponse,
  WatchTreeResponseSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
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
    async *watchTrajectories(_, context) {
      yield* rootListMessages(recorded);
      yield* signsOfLife(context, () => ({ caughtUp: true }));
    },
    async *watchTree(request, context) {
      yield* treeMessages(recorded, request);
      yield* signsOfLife(context, () => ({ caughtUp: true }));
    },
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
    async *watchRun(request, context) {
      yield* runMessages(recorded, request);
      yield* signsOfLife(context, () => ({ caughtUp: true }));
    },
    async *watchRuns(_, context) {
      yield* runListMessages(recorded);
      yield* signsOfLife(context, () => ({ caughtUp: true }));
    },
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
  const watches = new Map<string, (request: Uint8Array) => Uint8Array[]>([
    watchOf(TrajectoryService.method.watchTrajectories, () => rootListMessages(recorded)),
    watchOf(TrajectoryService.method.watchTree, (request) => treeMessages(recorded, request)),
    watchOf(RunService.method.watchRun, (request) => runMessages(recorded, request)),
    watchOf(RunService.method.watchRuns, () => runListMessages(recorded)),
  ]);
  router.service(ServerService, {
    async *watch({ watches: calls }, context) {
      for (const [watch, { method, request }] of calls.entries()) {
        for (const response of watches.get(method)?.(request) ?? []) yield { watch, response };
      }
      // An empty message of the first watch changes nothing.
      yield* signsOfLife(context, () => ({ watch: 0, response: new Uint8Array() }));
    },
  });
}

function watchOf<M extends DescMethodServerStreaming>(
  { parent, name, input, output }: M,
  messages: (request: MessageShape<M['input']>) => MessageShape<M['output']>[],
): [string, (request: Uint8Array) => Uint8Array[]] {
  const answer = (bytes: Uint8Array) =>
    messages(fromBinary(input, bytes) as MessageShape<M['input']>).map((each) => toBinary(output, each));
  return [`${parent.typeName}/${name}`, answer];
}

function serveRollouts(router: ConnectRouter, { rollouts, overrides, runMessages }: Recorded): void {
  const groups = runMessages.flatMap((message) => message.groups);
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

function treeMessages({ nodes }: Recorded, { treeId }: WatchTreeRequest): WatchTreeResponse[] {
  const root = nodes.get(treeId)?.trajectory?.treeId;
  const found = [...nodes.values()].filter(({ trajectory }) => trajectory?.treeId === root);
  if (found.length === 0) throw absent('TRAJECTORY_NOT_FOUND', `The file has no trajectory ${treeId}.`);
  return [create(WatchTreeResponseSchema, { nodes: found, caughtUp: true })];
}

function runMessages({ runMessages }: Recorded, { runId }: WatchRunRequest): WatchRunResponse[] {
  const isHere = runMessages.some(({ run }) => run?.id === runId);
  if (!isHere) throw absent('RUN_NOT_FOUND', `The file has no run ${runId}.`);
  return runMessages;
}

function runListMessages({ runMessages }: Recorded): WatchRunsResponse[] {
  const run = runMessages.find((message) => message.run !== undefined)?.run;
  const progress = runMessages.find((message) => message.progress !== undefined)?.progress;
  const runs = run === undefined ? [] : [{ run, ...(progress === undefined ? {} : { progress }) }];
  const page = { runIds: runs.map((each) => each.run.id) };
  return [create(WatchRunsResponseSchema, { runs, page, caughtUp: true })];
}

function rootsOf({ nodes }: Recorded): Trajectory[] {
  return [...nodes.values()].flatMap(({ trajectory }) => (trajectory?.parentId === '' ? trajectory : []));
}

function rootListMessages(recorded: Recorded): WatchTrajectoriesResponse[] {
  const trajectories = rootsOf(recorded);
  const page = { trajectoryIds: trajectories.map(({ id }) => id) };
  return [create(WatchTrajectoriesResponseSchema, { trajectories, page, caughtUp: true })];
}

async function* signsOfLife<M>({ signal }: HandlerContext, message: () => M): AsyncGenerator<M> {
  while (!signal.aborted) {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, SIGN_OF_LIFE_MS);
      signal.addEventListener('abort', () => resolve(clearTimeout(timer)), { once: true });
    });
    if (!signal.aborted) yield message();
  }
}

function absent(reason: string, message: string): ConnectError {
  const info = { desc: ErrorInfoSchema, value: { reason, domain: 'anabranch.v1' } };
  return new ConnectError(message, Code.NotFound, undefined, [info]);
}
