import type { Caller } from '../../domain/caller.ts';
import { cutJson } from '../../domain/compare.ts';
import { invalidField } from '../../domain/errors.ts';
import { type Json, type JsonDifference, jsonDifferences, parseJson } from '../../domain/json.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Run } from '../../domain/run.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import { findRun } from '../../stream/find.ts';
import { trajectoryDeleted } from '../../stream/steps/step_page.ts';
import type { App } from '../app.ts';
import { type Comparison, compareWhole, type ListRange, requireListRange } from '../trajectory/compare.ts';
import { pathsBytes } from './row_bytes.ts';

export interface CompareRunsArgs extends ListRange {
  /** The first is what the others are compared with; 2 to 20, each once. */
  readonly runIds: readonly string[];
}

export interface RunComparisons {
  /** Of the first run. */
  readonly removedConfigPaths: readonly string[];
  readonly comparisons: readonly RunComparison[];
}

/** How a run compares with the first. */
export interface RunComparison {
  readonly runId: string;
  readonly removedConfigPaths: readonly string[];
  readonly pathsTruncated: boolean;
  readonly configDifferences: readonly JsonDifference[];
  /** There are more. */
  readonly truncated: boolean;
  /** Undefined where one of the two has no main trajectory. */
  readonly trajectories: Comparison | undefined;
}

/** What the whole answer may take, and what one comparison takes that has nothing to tell. */
const ANSWER_BYTES = LIMITS.messageBytes - 64 * 1024;
const COMPARISON_BYTES = 512;
const REWARD_BYTES = 48;
const DIFFERENCE_BYTES = 32;
/** A character of JSON text takes at most so many bytes, also where the text is cut and stands in a string. */
const CHARACTER_BYTES = 3;

/**
 * RD5 of the main trajectories, and where the effective configs differ. Values that are long are cut, and differences that do not fit are left
 * out and told of, so that the answer stays below 1 MiB (RD3). Errors: RUN_NOT_FOUND, TRAJECTORY_DELETED.
 */
export async function compareRuns(app: App, caller: Caller, args: CompareRunsArgs): Promise<RunComparisons> {
  requireListRange(args, LIMITS.compareRunSteps);
  const ids = args.runIds;
  if (new Set(ids).size < ids.length) throw invalidField('run_ids', 'must name each run once');
  const sides: Side[] = [];
  for (const id of ids) sides.push(await openSide(app, caller, id));
  const [one, ...others] = sides;
  if (one === undefined || others.length === 0) throw invalidField('run_ids', 'must name at least two runs');
  const { removedConfigPaths } = one.run;
  const room = Math.floor((ANSWER_BYTES - pathsBytes(removedConfigPaths)) / others.length) - COMPARISON_BYTES;
  const comparisons: RunComparison[] = [];
  for (const other of others) comparisons.push(await compareSides(app, caller, one, other, args, room));
  return { removedConfigPaths, comparisons };
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
  one: Side,
  other: Side,
  range: ListRange,
  room: number,
): Promise<RunComparison> {
  const whole =
    one.trajectory === undefined || other.trajectory === undefined
      ? undefined
      : await compareWhole(app, caller, one.trajectory, other.trajectory, range);
  let left = room - (whole?.rewards.length ?? 0) * REWARD_BYTES;
  const trajectories = whole === undefined ? undefined : withCutDifference(whole, left / 4);
  left -= bytesOf(trajectories?.firstDifference);
  const removedConfigPaths = pathsThatFit(other.run.removedConfigPaths, left / 2);
  left -= pathsBytes(removedConfigPaths);
  const configs = differencesThatFit(one.config, other.config, left);
  return {
    runId: other.run.id,
    removedConfigPaths,
    pathsTruncated: removedConfigPaths.length < other.run.removedConfigPaths.length,
    configDifferences: configs.listed,
    truncated: configs.truncated,
    trajectories,
  };
}

function pathsThatFit(paths: readonly string[], room: number): readonly string[] {
  let left = room;
  const tooMany = paths.findIndex((path) => {
    left -= pathsBytes([path]);
    return left < 0;
  });
  return tooMany < 0 ? paths : paths.slice(0, tooMany);
}

function withCutDifference(comparison: Comparison, bytes: number): Comparison {
  const { firstDifference: first } = comparison;
  return first === undefined
    ? comparison
    : { ...comparison, firstDifference: { ...first, ...cutValues(first, bytes) } };
}

function differencesThatFit(one: Json, other: Json, room: number): { listed: JsonDifference[]; truncated: boolean } {
  const listed: JsonDifference[] = [];
  let left = room;
  for (const found of jsonDifferences(one, other)) {
    const difference = { path: found.path, ...cutValues(found, room / 4) };
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

/** Each of the two in at most so many bytes. */
function cutValues({ valueJson, otherValueJson }: Values, bytes: number): Values {
  const length = Math.floor(bytes / CHARACTER_BYTES) - 8;
  return { valueJson: cutJson(valueJson, length), otherValueJson: cutJson(otherValueJson, length) };
}

function bytesOf(values: Values | undefined): number {
  return values === undefined ? 0 : Buffer.byteLength(values.valueJson) + Buffer.byteLength(values.otherValueJson);
}
