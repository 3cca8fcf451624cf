import type { MessageInitShape } from '@bufbuild/protobuf';
import { type Timestamp, timestampDate } from '@bufbuild/protobuf/wkt';
import type { CallOptions } from '@connectrpc/connect';
import type { Attempt, Group, Rollout, Validation, ValidationOverride } from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { Run } from '../../gen/es/anabranch/v1/run_pb.js';
import {
  type ConfigDifference,
  RunService,
  type RunWithProgress,
  type WatchRunResponse,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { type Step, type Trajectory, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepScope, TrajectoryService, type TreeNode } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { reasonOf } from '../../src/client/errors.ts';
import { readTrajectories } from '../../src/client/trajectories.ts';
import { type RunPicture, watchRun } from '../../src/client/watch.ts';
import { LISTED } from './address.ts';
import type { Api } from './client.ts';
import { connect } from './connect.ts';
import type { RunFilter } from './home/filter.ts';
import type { MetricRead } from './run/metric_book.ts';
import { readValues } from './tree/read_values.ts';
import type { Series } from './tree/series.ts';
import { type WatchEvents, watch } from './watch/watch.ts';

/** Calls that views share. Calls of one view are in its folder. */

export type { Api } from './client.ts';

/** Creates the client of the server that the page was loaded from. */
export function connectHere(): Api {
  return connect(location.origin);
}

/** Watches the first runs of a filter. */
export function watchRuns(
  { statuses, ...filter }: RunFilter,
  events: WatchEvents,
): AsyncGenerator<readonly RunWithProgress[]> {
  const request = { list: { ...filter, statuses: [...statuses], pageSize: LISTED } };
  return pagesOf(
    watch(RunService.method.watchRuns, request, events),
    ({ runs, page, caughtUp }) => ({ items: runs, ids: page?.runIds, caughtUp }),
    ({ run }) => run?.id ?? '',
  );
}

/** Watches the roots that belong to no run, the newest first. */
export function watchRoots(events: WatchEvents): AsyncGenerator<readonly Trajectory[]> {
  const request = { list: { rootsOnly: true, withoutRun: true, pageSize: LISTED } };
  return pagesOf(
    watch(TrajectoryService.method.watchTrajectories, request, events),
    ({ trajectories, page, caughtUp }) => ({ items: trajectories, ids: page?.trajectoryIds, caughtUp }),
    ({ id }) => id,
  );
}

/** What a message says about a watched page. */
interface PageChanges<T> {
  readonly items: readonly T[];
  readonly ids: readonly string[] | undefined;
  readonly caughtUp: boolean;
}

/** Yields a watched page whenever it has changed. */
async function* pagesOf<M, T>(
  messages: AsyncIterable<M | 'begin'>,
  changesOf: (message: M) => PageChanges<T>,
  idOf: (item: T) => string,
): AsyncGenerator<readonly T[]> {
  const known = new Map<string, T>();
  let page: readonly string[] = [];
  for await (const message of messages) {
    if (message === 'begin') continue;
    const { items, ids, caughtUp } = changesOf(message as M);
    for (const item of items) known.set(idOf(item), item);
    if (ids !== undefined) page = ids;
    if (!caughtUp) continue;
    const shown = new Set(page);
    for (const id of known.keys()) if (!shown.has(id)) known.delete(id);
    yield page.flatMap((id) => known.get(id) ?? []);
  }
}

/** Watches the tree that a trajectory belongs to. Yields all its trajectories whenever some have changed. */
export async function* watchTree(treeId: string, events: WatchEvents): AsyncGenerator<readonly TreeNode[]> {
  let known: ReadonlyMap<string, TreeNode> = new Map();
  let nodes = new Map<string, TreeNode>();
  for await (const message of watch(TrajectoryService.method.watchTree, { treeId }, events)) {
    if (message === 'begin') {
      nodes = new Map();
      continue;
    }
    for (const node of message.nodes) if (node.trajectory !== undefined) nodes.set(node.trajectory.id, node);
    for (const id of message.removedIds) nodes.delete(id);
    // Signs of life change nothing, and are no reason to draw.
    const same = known === nodes && message.nodes.length === 0 && message.removedIds.length === 0;
    if (!message.caughtUp && known !== nodes) continue;
    known = nodes;
    if (!same) yield [...nodes.values()];
  }
}

/** Watches the ends of trajectories, and of their statuses: at most 20 are watched. */
export async function* watchEnds(trajectoryIds: readonly string[], events: WatchEvents): AsyncGenerator<string> {
  if (trajectoryIds.length === 0) return;
  const ends = new Map<string, string>();
  const request = { trajectoryIds: trajectoryIds.slice(0, 20) };
  for await (const message of watch(TrajectoryService.method.watchTree, request, events)) {
    if (message === 'begin') continue;
    for (const { trajectory } of message.nodes) {
      if (trajectory !== undefined) ends.set(trajectory.id, `${trajectory.nextStepNumber} ${trajectory.status}`);
    }
    if (message.caughtUp) yield [...ends.values()].join();
  }
}

/** Watches rollouts of open stages of a run. Yields what changes with each of their turns and results. */
export async function* watchRollouts(
  runId: string,
  isWatched: (rollout: Rollout) => boolean,
  events: WatchEvents,
): AsyncGenerator<string> {
  if (runId === '') return;
  const rollouts = new Map<string, string>();
  const request = { runId, rollouts: true };
  for await (const message of watch(RunService.method.watchRun, request, events)) {
    if (message === 'begin') continue;
    for (const each of message.rollouts) {
      if (isWatched(each)) rollouts.set(each.id, `${each.revision} ${each.turns} ${each.reward} ${each.status}`);
    }
    if (message.caughtUp) yield [...rollouts.values()].join();
  }
}

export function dateOf(time: Timestamp | undefined): Date | undefined {
  return time === undefined ? undefined : timestampDate(time);
}

/** Returns a step with all its fields, and the trajectory that owns it. */
export async function readStep(
  api: Api,
  trajectoryId: string,
  stepNumber: number,
  signal: AbortSignal,
): Promise<{ readonly owner: string; readonly step: Step }> {
  const { trajectoryId: owner, step } = await api.trajectories.getStep(
    { trajectoryId, stepNumber: BigInt(stepNumber) },
    { signal },
  );
  if (step === undefined) throw new Error(`the server sent no step ${stepNumber}`);
  return { owner, step };
}

/** Returns the last step at or before a number that has states, undefined if there is none. */
export async function readCheckpoint(
  api: Api,
  trajectoryId: string,
  atOrBefore: number,
  signal: AbortSignal,
): Promise<Step | undefined> {
  if (atOrBefore < 0) return undefined;
  const request = { trajectoryId, atOrBefore: BigInt(atOrBefore) };
  try {
    return (await api.trajectories.getCheckpoint(request, { signal })).step;
  } catch (error) {
    if (reasonOf(error) === 'CHECKPOINT_NOT_FOUND') return undefined;
    throw error;
  }
}

/** A state by the step that has it. Small states are stored within their step, and have no digest of their own. */
export interface StateAt {
  readonly trajectoryId: string;
  readonly stepNumber: bigint;
  readonly name: string;
}

/** Returns the bytes of a state as text. */
export async function readStateText(state: StateAt, signal: AbortSignal): Promise<string> {
  const response = await fetch(stateAddress(state), { signal });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return response.text();
}

/** Address of the bytes of a state. Browsers show images and videos, and download everything else. */
export function stateAddress({ trajectoryId, stepNumber, name }: StateAt): string {
  return `/trajectories/${trajectoryId}/steps/${stepNumber}/states/${encodeURIComponent(name)}`;
}

/** Address of the bytes of a content that is stored as a state. */
export function contentAddress(digest: string, mediaType: string): string {
  return `/states/${digest}?media_type=${encodeURIComponent(mediaType)}`;
}

/** Points of a metric: more than a small plot has pixels. */
const METRIC_POINTS = 800;

interface MetricsWanted {
  readonly runIds: readonly string[];
  readonly keys: readonly string[];
  readonly from: number | undefined;
  /** Included. */
  readonly to: number | undefined;
}

/** Reads metrics of runs, by key. Values of stages are left out. */
export async function readMetrics(
  api: Api,
  { runIds, keys, from, to }: MetricsWanted,
  signal: AbortSignal,
): Promise<ReadonlyMap<string, MetricRead[]>> {
  const found = new Map<string, MetricRead[]>();
  const request = {
    runIds: [...runIds],
    keys: [...keys],
    runLevelOnly: true,
    ...(from === undefined ? {} : { startMetricStep: BigInt(from) }),
    ...(to === undefined ? {} : { endMetricStep: BigInt(to) + 1n }),
    maxPoints: METRIC_POINTS,
  };
  for await (const { series } of api.runs.readMetrics(request, { signal })) {
    for (const { runId, key, metricSteps, values, pointCount } of series) {
      const line = { steps: Float64Array.from(metricSteps, Number), values: Float64Array.from(values) };
      const read = { runId, series: line, points: Number(pointCount) };
      found.set(key, [...(found.get(key) ?? []), read]);
    }
  }
  return found;
}

/** Watches a run with all its stages, groups and rollouts. Reconnects by itself, without a limit. */
export function watchRunHere(
  api: Api,
  runId: string,
  options: WatchEvents & { onCaughtUp(): void },
): AsyncGenerator<RunPicture> {
  // The stream of all tabs reconnects by itself. With all stages, every snapshot is complete.
  const client = {
    ...api,
    runs: {
      ...api.runs,
      watchRun: (request: WatchRunInit, { signal = options.signal }: CallOptions = {}) =>
        withoutBegin(watch(RunService.method.watchRun, request, { ...options, signal })),
    },
  };
  const all = { allStages: true, rollouts: true, giveUpAfterMs: Number.POSITIVE_INFINITY };
  return watchRun(client, { runId, ...all, ...options });
}

/** Watches a run and its metric series. */
export function watchSeries(runId: string, events: WatchEvents): AsyncGenerator<WatchRunResponse> {
  return withoutBegin(watch(RunService.method.watchRun, { runId, series: true }, events));
}

type WatchRunInit = MessageInitShape<typeof RunService.method.watchRun.input>;

async function* withoutBegin<M>(messages: AsyncIterable<M | 'begin'>): AsyncGenerator<M, void, undefined> {
  for await (const message of messages) if (message !== 'begin') yield message;
}

/** Returns how the config of a run differs from that of the run that it was branched from. */
export async function listParentDifferences(
  api: Api,
  { id, parentId }: Pick<Run, 'id' | 'parentId'>,
  signal: AbortSignal,
): Promise<readonly ConfigDifference[]> {
  if (parentId === '') return [];
  const { comparisons } = await api.runs.compareRuns({ runIds: [parentId, id] }, { signal });
  return comparisons[0]?.configDifferences ?? [];
}

/** More turns of a rollout are not shown beside its siblings. */
const SIDE_TURNS = 60;

export interface Sibling {
  readonly rollout: Rollout;
  /** Own steps of the current attempt, as many as are shown. */
  readonly steps: readonly Step[];
  readonly more: number;
}

/** Reads a group and its rollouts with their turns. */
export async function readGroup(
  api: Api,
  groupId: string,
  signal: AbortSignal,
): Promise<{ readonly group: Group; readonly siblings: readonly Sibling[] }> {
  const [{ group }, { rollouts }] = await Promise.all([
    api.rollouts.getGroup({ groupId }, { signal }),
    api.rollouts.listRollouts({ groupId, pageSize: 64 }, { signal }),
  ]);
  if (group === undefined) throw new Error('the response of the server has no group');
  const trajectoryIds = rollouts.map(({ trajectoryId }) => trajectoryId).filter((id) => id !== '');
  const steps = new Map<string, readonly Step[]>();
  if (trajectoryIds.length > 0) {
    const request = { trajectoryIds, steps: StepScope.OWN, view: View.FULL, signal };
    for await (const read of readTrajectories(api, request)) steps.set(read.trajectory.id, read.steps);
  }
  const siblings = rollouts
    .toSorted((a, b) => Number(a.number - b.number))
    .map((rollout) => {
      const all = steps.get(rollout.trajectoryId) ?? [];
      return { rollout, steps: all.slice(0, SIDE_TURNS), more: Math.max(0, all.length - SIDE_TURNS) };
    });
  return { group, siblings };
}

export interface RolloutRead {
  readonly rollout: Rollout;
  readonly attempts: readonly Attempt[];
  readonly validations: readonly Validation[];
  readonly overrides: readonly ValidationOverride[];
  /** Reward after each turn of the current attempt. */
  readonly rewards: Series;
}

export async function readRollout(api: Api, rolloutId: string, signal: AbortSignal): Promise<RolloutRead> {
  const [{ rollout, attempts, validations }, { overrides }] = await Promise.all([
    api.rollouts.getRollout({ rolloutId }, { signal }),
    api.rollouts.listValidationOverrides({ rolloutId, pageSize: 200 }, { signal }),
  ]);
  if (rollout === undefined) throw new Error('the response of the server has no rollout');
  const { trajectoryId } = rollout;
  const none = { steps: new Float64Array(), values: new Float64Array() };
  const series =
    trajectoryId === '' ? undefined : await readValues(api, { trajectoryIds: [trajectoryId] }, 'sum', signal);
  return { rollout, attempts, validations, overrides, rewards: series?.get(trajectoryId) ?? none };
}
