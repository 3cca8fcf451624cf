import { type Timestamp, timestampDate } from '@bufbuild/protobuf/wkt';
import type { Attempt, Group, Rollout, Validation, ValidationOverride } from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { Run } from '../../gen/es/anabranch/v1/run_pb.js';
import type { ConfigDifference, RunWithProgress } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { RunChanges, WatchResponse } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { type Step, type Trajectory, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepScope, type TreeNode } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { reasonOf } from '../../src/client/errors.ts';
import { readTrajectories } from '../../src/client/trajectories.ts';
import { type RunPicture, watchRun } from '../../src/client/watch.ts';
import type { WatchCalls } from '../../src/client/watched_stream.ts';
import { fetchHere } from './access.ts';
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
  return pagesOf(
    watch({ runs: { ...filter, statuses: [...statuses], pageSize: LISTED } }, events),
    ({ runs }) => runs && { items: runs.runs, ids: runs.page?.runIds },
    ({ run }) => run?.id ?? '',
  );
}

/** Watches the roots that belong to no run, the newest first. */
export function watchRoots(events: WatchEvents): AsyncGenerator<readonly Trajectory[]> {
  return pagesOf(
    watch({ trajectories: { rootsOnly: true, withoutRun: true, pageSize: LISTED } }, events),
    ({ trajectories }) => trajectories && { items: trajectories.trajectories, ids: trajectories.page?.trajectoryIds },
    ({ id }) => id,
  );
}

/** What a message says about a watched page. */
interface PageChanges<T> {
  readonly items: readonly T[];
  readonly ids: readonly string[] | undefined;
}

/** Yields a watched page whenever it has changed. */
async function* pagesOf<T>(
  messages: AsyncIterable<WatchResponse | 'begin'>,
  changesOf: (message: WatchResponse) => PageChanges<T> | undefined,
  idOf: (item: T) => string,
): AsyncGenerator<readonly T[]> {
  const known = new Map<string, T>();
  let page: readonly string[] = [];
  for await (const message of messages) {
    const changes = message === 'begin' ? undefined : changesOf(message);
    if (changes === undefined) continue;
    for (const item of changes.items) known.set(idOf(item), item);
    if (changes.ids !== undefined) page = changes.ids;
    const shown = new Set(page);
    for (const id of known.keys()) if (!shown.has(id)) known.delete(id);
    yield page.flatMap((id) => known.get(id) ?? []);
  }
}

/** Watches the tree that a trajectory belongs to. Yields all its trajectories whenever some have changed. */
export async function* watchTree(treeId: string, events: WatchEvents): AsyncGenerator<readonly TreeNode[]> {
  let nodes = new Map<string, TreeNode>();
  for await (const message of watch({ tree: { treeId } }, events)) {
    if (message === 'begin') {
      nodes = new Map();
      continue;
    }
    const { nodes: changed = [], removedIds = [] } = message.tree ?? {};
    for (const node of changed) if (node.trajectory !== undefined) nodes.set(node.trajectory.id, node);
    for (const id of removedIds) nodes.delete(id);
    if (message.caughtUp) yield [...nodes.values()];
  }
}

/** Watches the ends of trajectories, and of their statuses: at most 20 are watched. */
export async function* watchEnds(trajectoryIds: readonly string[], events: WatchEvents): AsyncGenerator<string> {
  if (trajectoryIds.length === 0) return;
  const ends = new Map<string, string>();
  for await (const message of watch({ tree: { trajectoryIds: trajectoryIds.slice(0, 20) } }, events)) {
    if (message === 'begin') continue;
    for (const { trajectory } of message.tree?.nodes ?? []) {
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
  for await (const message of watch({ run: { runId, rollouts: true } }, events)) {
    if (message === 'begin') continue;
    for (const each of message.run?.rollouts ?? []) {
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

/** Returns the bytes of a state. */
export async function readState(state: StateAt, signal: AbortSignal): Promise<Uint8Array> {
  const response = await fetchHere(stateAddress(state), { signal });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

/** Address of the bytes of a state. Browsers show images and videos, and download everything else. */
export function stateAddress({ trajectoryId, stepNumber, name }: StateAt): string {
  return `/trajectories/${trajectoryId}/steps/${stepNumber}/states/${encodeURIComponent(name)}`;
}

/** Address of the bytes of a content that is stored as a state. */
export function contentAddress(digest: string, mediaType: string): string {
  return `/states/${digest}?media_type=${encodeURIComponent(mediaType)}`;
}

/** Reads the bytes of a content that is stored as a state. */
export async function readContent(digest: string, signal: AbortSignal): Promise<Uint8Array> {
  const response = await fetchHere(contentAddress(digest, ''), { signal });
  if (!response.ok) throw new Error(`the content cannot be read: the server answered ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
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
  const server: WatchCalls['server'] = {
    async *watch({ subjects: { subject = {} } = {} }, { signal = options.signal } = {}) {
      for await (const message of watch(subject, { ...options, signal })) if (message !== 'begin') yield message;
    },
  };
  const all = { allStages: true, rollouts: true, giveUpAfterMs: Number.POSITIVE_INFINITY };
  return watchRun({ ...api, server }, { runId, ...all, ...options });
}

/** Watches a run and its metric series. */
export async function* watchSeries(runId: string, events: WatchEvents): AsyncGenerator<RunChanges> {
  for await (const message of watch({ run: { runId, series: true } }, events)) {
    if (message !== 'begin' && message.run !== undefined) yield message.run;
  }
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
