import { type Timestamp, timestampDate } from '@bufbuild/protobuf/wkt';
import type { Attempt, Group, Rollout, Validation, ValidationOverride } from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { Run } from '../../gen/es/anabranch/v1/run_pb.js';
import type { ConfigDifference, RunWithProgress } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { DiffStatesResponse } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { type Step, type Trajectory, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type CompareTrajectoriesResponse,
  StepScope,
  StepValue,
  type TreeNode,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import {
  type AnabranchClient,
  connectClient,
  type RunPicture,
  readTrajectories,
  reasonOf,
  watchRun,
} from '../../src/client/web/index.ts';
import { repeated, type WatchEvents } from './live.ts';
import type { Series } from './tree/series.ts';
import { type PlottedValue, partsOf } from './tree/value.ts';

/** All calls of the page go through this module. */

export type Api = AnabranchClient;

/** Rows of a list. */
const LISTED = 200;

/** Creates the client of the server that the page was loaded from. */
export function connectHere(): Api {
  return connectClient({ address: location.origin });
}

/** Watches the newest runs. */
export async function* watchRuns(api: Api, events: WatchEvents): AsyncGenerator<readonly RunWithProgress[]> {
  const runs = new Map<string, RunWithProgress>();
  let page: readonly string[] = [];
  const request = { list: { pageSize: LISTED } };
  for await (const message of repeated((signal) => api.runs.watchRuns(request, { signal }), events)) {
    if (message === 'begin') continue;
    for (const each of message.runs) if (each.run !== undefined) runs.set(each.run.id, each);
    if (message.page !== undefined) page = message.page.runIds;
    if (!message.caughtUp) continue;
    const shown = new Set(page);
    for (const id of runs.keys()) if (!shown.has(id)) runs.delete(id);
    yield page.flatMap((id) => runs.get(id) ?? []);
  }
}

/** Returns the roots that belong to no run, the newest first. */
export async function listRoots(api: Api, signal: AbortSignal): Promise<readonly Trajectory[]> {
  const request = { rootsOnly: true, withoutRun: true, pageSize: LISTED };
  return (await api.trajectories.listTrajectories(request, { signal })).trajectories;
}

/** Watches the tree that a trajectory belongs to. Yields all its trajectories whenever some have changed. */
export async function* watchTree(api: Api, treeId: string, events: WatchEvents): AsyncGenerator<readonly TreeNode[]> {
  let known: ReadonlyMap<string, TreeNode> = new Map();
  let nodes = new Map<string, TreeNode>();
  for await (const message of repeated((signal) => api.trajectories.watchTree({ treeId }, { signal }), events)) {
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

export function dateOf(time: Timestamp | undefined): Date | undefined {
  return time === undefined ? undefined : timestampDate(time);
}

/** Points of a trajectory: four of each stretch, more than a screen has pixels. */
const SERIES_POINTS = 2000;

/** What to plot: all trajectories of a tree or some, and all their own steps or those of a range. */
export type Plotted = ({ readonly treeId: string } | { readonly trajectoryIds: string[] }) & {
  readonly from?: number | undefined;
  readonly to?: number | undefined;
};

/** Reads a value of the own steps of each trajectory. */
export async function readValues(
  api: Api,
  { from, to, ...source }: Plotted,
  value: PlottedValue,
  signal: AbortSignal,
): Promise<ReadonlyMap<string, Series>> {
  const found = new Map<string, Series>();
  const request = {
    ...source,
    ...seriesRequest(value),
    steps: StepScope.OWN,
    startStepNumber: BigInt(from ?? 0),
    ...(to === undefined ? {} : { endStepNumber: BigInt(to) + 1n }),
    maxPoints: SERIES_POINTS,
  };
  for await (const { series } of api.trajectories.readStepSeries(request, { signal })) {
    for (const { trajectoryId, stepNumbers, values } of series) {
      found.set(trajectoryId, { steps: Float64Array.from(stepNumbers, Number), values: Float64Array.from(values) });
    }
  }
  return found;
}

const VALUES: Readonly<Record<string, StepValue>> = {
  sum: StepValue.REWARD_SUM,
  reward: StepValue.REWARD_MEAN,
  metric: StepValue.METRIC,
  action: StepValue.ACTION,
  observation: StepValue.OBSERVATION,
  info: StepValue.INFO,
  state: StepValue.STATE,
};

function seriesRequest(value: PlottedValue) {
  const { kind, name, pointer } = partsOf(value);
  return {
    value: VALUES[kind] ?? StepValue.UNSPECIFIED,
    [kind === 'metric' ? 'metricKey' : 'stateName']: name,
    pointer,
  };
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

export function compareStates(
  api: Api,
  before: StateAt,
  after: StateAt,
  signal: AbortSignal,
): Promise<DiffStatesResponse> {
  return api.states.diffStates({ reference: before, otherReference: after }, { signal });
}

/** Returns a state as JSON. Throws if it is none. */
export async function readJsonState(state: StateAt, signal: AbortSignal): Promise<unknown> {
  const response = await fetch(stateAddress(state), { signal });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return response.json();
}

/** Address of the bytes of a state. Browsers show images and videos, and download everything else. */
export function stateAddress({ trajectoryId, stepNumber, name }: StateAt): string {
  return `/trajectories/${trajectoryId}/steps/${stepNumber}/states/${encodeURIComponent(name)}`;
}

/** Address of the bytes of a content that is stored as a state. */
export function contentAddress(digest: string, mediaType: string): string {
  return `/states/${digest}?media_type=${encodeURIComponent(mediaType)}`;
}

/** A metric of a run, thinned to what a plot shows. */
export interface MetricRead {
  readonly runId: string;
  readonly series: Series;
  readonly points: number;
}

/** Points of a metric: more than a small plot has pixels. */
const METRIC_POINTS = 800;

/** Reads the metrics of runs by their keys. Values of stages are left out. */
export async function readMetrics(
  api: Api,
  runIds: readonly string[],
  { from, to }: { readonly from: number | undefined; readonly to: number | undefined },
  signal: AbortSignal,
): Promise<ReadonlyMap<string, MetricRead[]>> {
  const found = new Map<string, MetricRead[]>();
  const request = {
    runIds: [...runIds],
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
  return watchRun(api, { runId, allStages: true, rollouts: true, giveUpAfterMs: Number.POSITIVE_INFINITY, ...options });
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

/** Sets the verdict of a rollout by hand. Undefined withdraws it. */
export async function overrideVerdict(
  api: Api,
  rolloutId: string,
  success: boolean | undefined,
  reason: string,
): Promise<void> {
  await api.rollouts.overrideValidation({
    rolloutId,
    reason,
    actor: 'page',
    ...(success === undefined ? {} : { success }),
  });
}

export interface Comparison {
  readonly trajectory: Trajectory;
  readonly rewards: Series;
  /** How it differs from the first trajectory. Undefined for the first. */
  readonly difference: CompareTrajectoriesResponse | undefined;
}

/** Compares trajectories with the first of them. */
export async function compareTrajectories(
  api: Api,
  ids: readonly string[],
  signal: AbortSignal,
): Promise<Comparison[]> {
  const [first = ''] = ids;
  return Promise.all(
    ids.map(async (id, at) => {
      const request = { trajectoryId: first, otherTrajectoryId: id };
      const [{ trajectory }, rewards, difference] = await Promise.all([
        api.trajectories.getTrajectory({ trajectoryId: id }, { signal }),
        readLineageSums(api, id, signal),
        at === 0 ? undefined : api.trajectories.compareTrajectories(request, { signal }),
      ]);
      if (trajectory === undefined) throw new Error('the response of the server has no trajectory');
      return { trajectory, rewards, difference };
    }),
  );
}

async function readLineageSums(api: Api, id: string, signal: AbortSignal): Promise<Series> {
  const request = { trajectoryIds: [id], steps: StepScope.LINEAGE, maxPoints: SERIES_POINTS };
  for await (const { series } of api.trajectories.readStepSeries(request, { signal })) {
    for (const { stepNumbers, values } of series) {
      return { steps: Float64Array.from(stepNumbers, Number), values: Float64Array.from(values) };
    }
  }
  return { steps: new Float64Array(), values: new Float64Array() };
}
