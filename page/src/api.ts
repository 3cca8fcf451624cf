import { type Timestamp, timestampDate } from '@bufbuild/protobuf/wkt';
import { ConnectError } from '@connectrpc/connect';
import type { RunWithProgress } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { DiffStatesResponse } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { type Step, type Trajectory, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepScope, type TreeNode } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient, readTrajectories, reasonOf } from '../../src/client/web/index.ts';
import type { Series } from './tree/series.ts';
import { isBasic, numberIn, type PlottedValue } from './tree/value.ts';

/** All calls of the page go through this module. */

export type Api = AnabranchClient;

/** Creates the client of the server that the page was loaded from. */
export function connectHere(): Api {
  return connectClient({ address: location.origin });
}

export async function listRuns(api: Api, signal: AbortSignal): Promise<readonly RunWithProgress[]> {
  return (await api.runs.listRuns({ pageSize: 200 }, { signal })).runs;
}

/** Returns the roots that belong to no run, the newest first. */
export async function listRoots(api: Api, signal: AbortSignal): Promise<readonly Trajectory[]> {
  const request = { rootsOnly: true, withoutRun: true, pageSize: 200 };
  return (await api.trajectories.listTrajectories(request, { signal })).trajectories;
}

/** Reads the tree that a trajectory belongs to. */
export async function readTree(api: Api, trajectoryId: string, signal: AbortSignal): Promise<TreeNode[]> {
  const nodes: TreeNode[] = [];
  let pageToken = '';
  do {
    const page = await api.trajectories.getTree({ trajectoryId, pageSize: 1000, pageToken }, { signal });
    nodes.push(...page.nodes);
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
  return nodes;
}

export function dateOf(time: Timestamp | undefined): Date | undefined {
  return time === undefined ? undefined : timestampDate(time);
}

/** Returns what a person should read about an error. */
export function messageOf(error: unknown): string {
  if (error instanceof ConnectError) return error.rawMessage;
  return error instanceof Error ? error.message : String(error);
}

/** Values of more steps than this are not read: the page says so. */
const MOST_PLOTTED_STEPS = 250_000;

export interface ValuesRead {
  readonly series: ReadonlyMap<string, Series>;
  /** Trajectories whose values were not read, because the tree has too many steps. */
  readonly left: number;
}

/** Reads a value of the own steps of each trajectory. */
export async function readValues(
  api: Api,
  trajectoryIds: readonly string[],
  values: readonly PlottedValue[],
  signal: AbortSignal,
): Promise<ReadonlyMap<PlottedValue, ValuesRead>> {
  const view = values.every(isBasic) ? View.BASIC : View.FULL;
  const found = values.map((value) => ({ value, series: new Map<string, Series>() }));
  let read = 0;
  let done = 0;
  for (let at = 0; at < trajectoryIds.length && read < MOST_PLOTTED_STEPS; at += 1000) {
    const request = { trajectoryIds: trajectoryIds.slice(at, at + 1000), steps: StepScope.OWN, view, signal };
    for await (const { trajectory, steps } of readTrajectories(api, request)) {
      for (const { value, series } of found) series.set(trajectory.id, seriesOf(steps, value));
      read += steps.length;
      done += 1;
      if (read >= MOST_PLOTTED_STEPS) break;
    }
  }
  const left = trajectoryIds.length - done;
  return new Map(found.map(({ value, series }) => [value, { series, left: read >= MOST_PLOTTED_STEPS ? left : 0 }]));
}

function seriesOf(steps: readonly Step[], value: PlottedValue): Series {
  const points = steps.flatMap((step) => {
    const found = numberIn(step, value);
    return found === undefined || !Number.isFinite(found) ? [] : [[Number(step.stepNumber), found] as const];
  });
  return {
    steps: Float64Array.from(points, ([step]) => step),
    values: Float64Array.from(points, ([, found]) => found),
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
