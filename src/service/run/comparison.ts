import { create } from '@bufbuild/protobuf';
import {
  type CompareRunsRequest,
  type CompareRunsResponse,
  CompareRunsResponseSchema,
  type ConfigDifference,
  ConfigDifferenceSchema,
  type RunComparison,
  RunComparisonSchema,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import type { CompareTrajectoriesResponse } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { cutJson } from '../../domain/compare.ts';
import { type Json, jsonDifferences, parseJson } from '../../domain/json.ts';
import { ANSWER_BYTES, LIMITS } from '../../domain/limits.ts';
import type { Run } from '../../domain/run.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { App } from '../../stream/app.ts';
import { findRun } from '../../stream/find.ts';
import { trajectoryDeleted } from '../../stream/steps/step_page.ts';
import { countFitting, totalBytes } from '../answer/message.ts';
import { requireDistinct } from '../convert/values.ts';
import { compareTrajectories, type ListRange, requireListRange } from '../trajectory/comparison.ts';

/** Maximum sizes of a comparison without differences, a reward, a difference without texts, a path without text. */
const COMPARISON_BYTES = 512;
const REWARD_BYTES = 48;
const DIFFERENCE_BYTES = 32;
const PATH_BYTES = 4;
/** Maximum size of a character of JSON text, also if the text was cut and is inside a string. */
const CHARACTER_BYTES = 3;

/**
 * Compares the main trajectories (RD5) and the effective configs of runs. Cuts long values, and omits differences that
 * do not fit into 1 MiB (RD3). Errors: RUN_NOT_FOUND, TRAJECTORY_DELETED.
 */
export async function compareRuns(app: App, caller: Caller, request: CompareRunsRequest): Promise<CompareRunsResponse> {
  requireListRange(request, LIMITS.compareRunSteps);
  requireDistinct(request.runIds, (id) => [id], 'run_ids');
  const sides: Side[] = [];
  for (const id of request.runIds) sides.push(await openSide(app, caller, id));
  const [one, ...others] = sides;
  const answer = create(CompareRunsResponseSchema);
  if (one === undefined) return answer;
  answer.removedConfigPaths = [...one.run.removedConfigPaths];
  const room = Math.floor((ANSWER_BYTES - totalBytes(answer.removedConfigPaths, pathBytes)) / others.length);
  for (const other of others) {
    answer.comparisons.push(await compareSides(app, caller, [one, other], request, room - COMPARISON_BYTES));
  }
  return answer;
}

interface Side {
  readonly run: Run;
  readonly config: Json;
  readonly trajectory: Trajectory | undefined;
}

async function openSide(app: App, caller: Caller, id: string): Promise<Side> {
  const run = await findRun(app, caller, id);
  const { mainTrajectory: main } = run;
  const config = parseJson(run.configJson);
  if (main === undefined) return { run, config, trajectory: undefined };
  const trajectory = await app.store.getTrajectory(caller.namespace, main.id);
  if (trajectory === undefined) throw trajectoryDeleted(main.id);
  return { run, config, trajectory };
}

async function compareSides(
  app: App,
  caller: Caller,
  [one, other]: readonly [Side, Side],
  range: ListRange,
  room: number,
): Promise<RunComparison> {
  const trajectories =
    one.trajectory &&
    other.trajectory &&
    (await compareTrajectories(app, caller, one.trajectory, other.trajectory, range));
  let left = room - (trajectories?.rewards.length ?? 0) * REWARD_BYTES;
  left -= cutFirstDifference(trajectories, left / 4);
  const paths = other.run.removedConfigPaths;
  const removedConfigPaths = paths.slice(0, countFitting(paths, pathBytes, left / 2));
  left -= totalBytes(removedConfigPaths, pathBytes);
  const configs = differencesThatFit(one.config, other.config, left);
  return create(RunComparisonSchema, {
    trajectories,
    runId: other.run.id,
    removedConfigPaths,
    removedConfigPathsTruncated: removedConfigPaths.length < paths.length,
    configDifferences: configs.listed,
    configDifferencesTruncated: configs.truncated,
  });
}

function pathBytes(path: string): number {
  return PATH_BYTES + Buffer.byteLength(path);
}

/** Cuts the values of the first difference to `bytes` each. Returns their size. */
function cutFirstDifference(comparison: CompareTrajectoriesResponse | undefined, bytes: number): number {
  const first = comparison?.firstDifference;
  if (first === undefined) return 0;
  Object.assign(first, cutValues(first, bytes));
  return bytesOf(first);
}

function differencesThatFit(one: Json, other: Json, room: number): { listed: ConfigDifference[]; truncated: boolean } {
  const listed: ConfigDifference[] = [];
  let left = room;
  for (const found of jsonDifferences(one, other)) {
    const difference = create(ConfigDifferenceSchema, { path: found.path, ...cutValues(found, room / 4) });
    left -= DIFFERENCE_BYTES + Buffer.byteLength(found.path) + bytesOf(difference);
    if (left < 0 || listed.length === LIMITS.configDifferences) return { listed, truncated: true };
    listed.push(difference);
  }
  return { listed, truncated: false };
}

interface Values {
  readonly valueJson: string;
  readonly otherValueJson: string;
}

/** Cuts each of the two values to at most `bytes`. */
function cutValues({ valueJson, otherValueJson }: Values, bytes: number): Values {
  const length = Math.floor(bytes / CHARACTER_BYTES) - 8;
  return { valueJson: cutJson(valueJson, length), otherValueJson: cutJson(otherValueJson, length) };
}

function bytesOf({ valueJson, otherValueJson }: Values): number {
  return Buffer.byteLength(valueJson) + Buffer.byteLength(otherValueJson);
}
