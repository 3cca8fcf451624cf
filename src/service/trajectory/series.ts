import { create } from '@bufbuild/protobuf';
import {
  type ReadStepSeriesRequest,
  type ReadStepSeriesResponse,
  ReadStepSeriesResponseSchema,
  StepScope,
  StepSeriesSchema,
  StepValue,
  type TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { parsePointer } from '../../domain/json_pointer.ts';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import type { OwnedRange } from '../../domain/lineage.ts';
import { type JsonPath, stateNumber } from '../../domain/numbers/pointer.ts';
import { DEFAULT_STATE_NAME, type RestoredState, type StateRef } from '../../domain/step.ts';
import type { SeriesQuery, StepSeries } from '../../domain/step_series.ts';
import { ownBegin, type Trajectory } from '../../domain/trajectory.ts';
import type { App } from '../../stream/app.ts';
import { findTrajectory } from '../../stream/find.ts';
import { requireRange } from '../../stream/steps/read.ts';
import { sizerOf } from '../answer/message.ts';
import type { ServerStream } from '../method.ts';
import { isMissing, rowReader, smallReader, stateBytes } from '../state/bytes.ts';

/** Reads downsampled series of steps (RD9). */
export const readStepSeries: ServerStream<typeof TrajectoryService.method.readStepSeries> = {
  isLarge: true,
  async *messages(request, { app, caller }) {
    requireRange(request.startStepNumber, request.endStepNumber);
    const args = toArgs(request);
    for await (const read of readSeries(app, caller, args)) yield* messagesOf(read);
  },
};

/** Points of a request that names no number. */
const DEFAULT_POINTS = 1000;

function toArgs(request: ReadStepSeriesRequest): SeriesArgs {
  return {
    of: request.treeId === '' ? { ids: request.trajectoryIds } : { treeOf: request.treeId },
    isOwn: request.steps === StepScope.OWN,
    from: request.startStepNumber,
    to: request.endStepNumber,
    value: toValue(request),
    maxPoints: request.maxPoints || DEFAULT_POINTS,
    stretchSteps: request.stretchSteps,
  };
}

/** Errors: INVALID_REQUEST. */
function toValue({ value, metricKey, pointer, stateName }: ReadStepSeriesRequest): SeriesArgs['value'] {
  const isMetric = value === StepValue.METRIC;
  if (isMetric && metricKey === '') throw invalidField('metric_key', 'is required with value METRIC');
  if (!isMetric && metricKey !== '') throw invalidField('metric_key', 'is allowed only with value METRIC');
  if (value !== StepValue.STATE && stateName !== '') {
    throw invalidField('state_name', 'is allowed only with value STATE');
  }
  const json = JSON_VALUES[value];
  if (json === undefined) {
    if (pointer !== '')
      throw invalidField('pointer', 'is allowed only with values ACTION, OBSERVATION, INFO and STATE');
    return isMetric ? { of: 'METRIC', key: metricKey } : { of: REWARDS[value] ?? 'REWARD_SUM' };
  }
  const path = parsePointer(pointer);
  if (path === undefined) {
    throw invalidField('pointer', 'must be empty or a JSON Pointer (RFC 6901), such as /pole/angle');
  }
  return json === 'STATE' ? { of: json, name: stateName || DEFAULT_STATE_NAME, path } : { of: json, path };
}

const JSON_VALUES: { readonly [Value in StepValue]?: 'ACTION' | 'OBSERVATION' | 'INFO' | 'STATE' } = {
  [StepValue.ACTION]: 'ACTION',
  [StepValue.OBSERVATION]: 'OBSERVATION',
  [StepValue.INFO]: 'INFO',
  [StepValue.STATE]: 'STATE',
};

const REWARDS: { readonly [Value in StepValue]?: 'REWARD' | 'REWARD_MEAN' } = {
  [StepValue.REWARD]: 'REWARD',
  [StepValue.REWARD_MEAN]: 'REWARD_MEAN',
};

const seriesBytes = sizerOf(StepSeriesSchema);

/** Divides series into messages. */
function* messagesOf(read: readonly SeriesRead[]): Generator<ReadStepSeriesResponse> {
  let response = create(ReadStepSeriesResponseSchema);
  let bytes = 0;
  for (const { trajectory, series } of read) {
    const { stepNumbers, values, stretchSteps } = series;
    const shown = create(StepSeriesSchema, {
      trajectoryId: trajectory.id,
      stepNumbers: [...stepNumbers],
      values: [...values],
      stretchSteps,
      nextStepNumber: trajectory.nextStepNumber,
    });
    const size = seriesBytes(shown);
    if (response.series.length > 0 && bytes + size > ANSWER_BYTES) {
      yield response;
      response = create(ReadStepSeriesResponseSchema);
      bytes = 0;
    }
    response.series.push(shown);
    bytes += size;
  }
  if (response.series.length > 0) yield response;
}

interface SeriesArgs extends Omit<SeriesQuery, 'value'> {
  /** Trajectories by id, or all of the tree of one. */
  readonly of: { readonly ids: readonly string[] } | { readonly treeOf: string };
  /** Reads only the steps that each trajectory owns. */
  readonly isOwn: boolean;
  readonly from: bigint;
  /** Exclusive. Undefined for the end of each trajectory. */
  readonly to: bigint | undefined;
  readonly value: SeriesQuery['value'] | StateValue;
}

/** A number in a state that is JSON or a tensor. */
interface StateValue {
  readonly of: 'STATE';
  readonly name: string;
  readonly path: JsonPath;
}

export interface SeriesRead {
  readonly trajectory: Trajectory;
  readonly series: StepSeries;
}

/** Trajectories that are read together. */
const TOGETHER = 64;

/**
 * RD9: returns a series of each trajectory, in order of creation, some at a time. Errors: TRAJECTORY_NOT_FOUND (of the
 * tree), STEP_CORRUPT, STATE_CORRUPT, SERVER_DRAINING.
 */
export async function* readSeries(
  app: App,
  caller: Caller,
  args: SeriesArgs,
): AsyncGenerator<readonly SeriesRead[], void, undefined> {
  for await (const page of trajectoriesOf(app, caller, args.of)) {
    for (let at = 0; at < page.length; at += TOGETHER) {
      app.drain.throwIfBegun();
      const some = page.slice(at, at + TOGETHER);
      const lineages = await Promise.all(some.map((trajectory) => lineageOf(app, caller, trajectory, args)));
      const series = await seriesOf(app, caller, some, lineages, args);
      yield some.map((trajectory, i) => ({ trajectory, series: series[i]! }));
    }
  }
}

/** Trajectories of a tree that are read by one statement. */
const PAGE = 256;

async function* trajectoriesOf(
  app: App,
  caller: Caller,
  of: SeriesArgs['of'],
): AsyncGenerator<readonly Trajectory[], void, undefined> {
  const { store } = app;
  if ('ids' in of) {
    const found = await store.findTrajectories(caller.namespace, of);
    yield found.map(({ trajectory }) => trajectory).sort((a, b) => (a.ref.key < b.ref.key ? -1 : 1));
    return;
  }
  const { tree } = (await findTrajectory(app, caller, of.treeOf)).ref;
  for (let after: bigint | undefined; ; ) {
    const page = await store.listTree(caller.namespace, tree, { limit: PAGE, after });
    yield page.filter(({ hidden }) => !hidden);
    if (page.length < PAGE) return;
    after = page.at(-1)!.ref.key;
  }
}

async function lineageOf(app: App, caller: Caller, trajectory: Trajectory, args: SeriesArgs): Promise<OwnedRange[]> {
  const own = ownBegin(trajectory);
  const from = args.isOwn && args.from < own ? own : args.from;
  const { nextStepNumber: end } = trajectory;
  const to = args.to === undefined || args.to > end ? end : args.to;
  return from < to ? app.lineages.within(app.store, caller.namespace, trajectory, from, to) : [];
}

async function seriesOf(
  app: App,
  { namespace }: Caller,
  trajectories: readonly Trajectory[],
  lineages: readonly OwnedRange[][],
  { value, maxPoints, stretchSteps }: SeriesArgs,
): Promise<StepSeries[]> {
  const of = trajectories.map(({ ref }, i) => ({ tree: ref.tree, lineage: lineages[i]! }));
  if (value.of !== 'STATE') return app.store.readStepSeries(namespace, of, { value, maxPoints, stretchSteps });
  const all: StepSeries[] = [];
  for (const { tree, lineage } of of) {
    all.push(await stateSeries(app, namespace, tree, lineage, { value, maxPoints, stretchSteps }));
  }
  return all;
}

/** Bytes of the largest state that is parsed. */
const STATE_BYTES = 1024 * 1024;

/** States of one statement at most: of every step, or fewer if steps are left out. */
const STATES_TOGETHER = 64;

/** Reads the first state with the name at or after evenly spaced steps, each state once. */
async function stateSeries(
  { store }: App,
  namespace: string,
  tree: bigint,
  lineage: readonly OwnedRange[],
  { value, maxPoints, stretchSteps: least }: Pick<SeriesArgs, 'maxPoints' | 'stretchSteps'> & { value: StateValue },
): Promise<StepSeries> {
  const to = lineage.at(-1)?.to ?? 0n;
  const begin = lineage[0]?.from ?? 0n;
  const even = (to - begin + BigInt(maxPoints) - 1n) / BigInt(maxPoints);
  const stretchSteps = [even, least, 1n].reduce((a, b) => (a > b ? a : b));
  const stepNumbers: bigint[] = [];
  const values: number[] = [];
  const last: RestoredState = {};
  const limit = Math.max(1, Math.floor(STATES_TOGETHER / Number(stretchSteps)));
  let isEnd = false;
  for (let from = begin; from < to && !isEnd; ) {
    const found = await store.listStepStates(namespace, tree, lineage, { name: value.name, from, limit });
    isEnd = found.length < limit;
    for (const { stepNumber, state } of found) {
      if (stepNumber < from) continue;
      const bytes = state.size > STATE_BYTES ? NO_BYTES : await bytesOf(store, namespace, state, last);
      await store.slots.take(namespace);
      const number = stateNumber(bytes, state.mediaType, value.path);
      if (number !== undefined) {
        stepNumbers.push(stepNumber);
        values.push(number);
      }
      // The next evenly spaced step after this one.
      from = begin + ((stepNumber - begin) / stretchSteps + 1n) * stretchSteps;
    }
  }
  return { stepNumbers, values, stretchSteps };
}

const NO_BYTES = new Uint8Array();

/** Returns no bytes if the state was deleted meanwhile. Errors: STATE_CORRUPT. */
async function bytesOf(
  store: Pick<App['store'], 'readState'>,
  namespace: string,
  state: StateRef,
  last: RestoredState,
): Promise<Uint8Array> {
  const { data } = state;
  const read = data === undefined ? rowReader(store, namespace, state, last) : smallReader(data);
  const parts: Uint8Array[] = [];
  try {
    for await (const part of stateBytes(read, state, 0, state.size)) parts.push(part);
  } catch (error) {
    if (isMissing(error)) return NO_BYTES;
    throw error;
  }
  return Buffer.concat(parts);
}
