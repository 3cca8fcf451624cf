import { create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  type CompareBranchesRequest,
  type CompareBranchesResponseSchema,
  type CompareTrajectoriesResponse,
  CompareTrajectoriesResponseSchema,
  type RewardPair,
  RewardPairSchema,
  type StepDifference,
  StepDifferenceSchema,
  BranchMeasure as WireMeasure,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import {
  type BranchMeasure,
  BranchPairs,
  percentileInterval,
  RESAMPLES,
  resampledMeans,
  signTest,
} from '../../domain/branch_pairs.ts';
import type { Caller } from '../../domain/caller.ts';
import { stepDifference } from '../../domain/compare.ts';
import { invalidField } from '../../domain/errors.ts';
import { type OwnedRange, sharedSteps } from '../../domain/lineage.ts';
import { ownBegin, type Trajectory } from '../../domain/trajectory.ts';
import type { StepOutline } from '../../store/contract/step.ts';
import type { App } from '../../stream/app.ts';
import { findTrajectory } from '../../stream/find.ts';
import { requireRange } from '../../stream/steps/read.ts';
import { readPage, trajectoryDeleted } from '../../stream/steps/step_page.ts';
import type { Call } from '../method.ts';

/** The steps whose rewards are listed. */
export interface ListRange {
  readonly startStepNumber: bigint;
  /** Exclusive. If it is unset, no rewards are listed. */
  readonly endStepNumber?: bigint | undefined;
}

/** Steps of one call of `readOutlines`, which may need several statements of 512 KiB. */
const STEPS_AT_ONCE = 1000;

/** Compares two trajectories (RD5). Errors: TRAJECTORY_DELETED. */
export async function compareTrajectories(
  app: App,
  caller: Caller,
  a: Trajectory,
  b: Trajectory,
  range: ListRange,
): Promise<CompareTrajectoriesResponse> {
  const [one, other] = [await openSide(app, caller, a), await openSide(app, caller, b)];
  const shared = sharedSteps(one.lineage, other.lineage);
  return create(CompareTrajectoriesResponseSchema, {
    sharedSteps: shared,
    rewardSum: a.rewardSum,
    otherRewardSum: b.rewardSum,
    rewardDifference: rewardDifference(a, b, shared),
    nextStepNumber: a.nextStepNumber,
    otherNextStepNumber: b.nextStepNumber,
    firstDifference: await firstDifference(one, other, shared),
    rewards: await listRewards(one, other, range),
  });
}

/**
 * Returns the difference of the reward sums. Omits shared rewards if that needs no read of steps, because large sums
 * would hide small differences.
 */
function rewardDifference(a: Trajectory, b: Trajectory, shared: bigint): number {
  const [one, other] = [rewardAfter(a, shared), rewardAfter(b, shared)];
  return one === undefined || other === undefined ? b.rewardSum - a.rewardSum : other - one;
}

/**
 * Returns the sum of the rewards after the shared steps: 0 if there are no such steps, undefined if the trajectory's
 * own steps do not begin at `shared`.
 */
function rewardAfter(trajectory: Trajectory, shared: bigint): number | undefined {
  if (trajectory.nextStepNumber === shared) return 0;
  return ownBegin(trajectory) === shared ? (trajectory.branchRewardSum ?? 0) : undefined;
}

/** One of the two trajectories, as it was when the call began. */
interface Side {
  readonly app: App;
  readonly caller: Caller;
  readonly trajectory: Trajectory;
  readonly lineage: readonly OwnedRange[];
}

async function openSide(app: App, caller: Caller, trajectory: Trajectory): Promise<Side> {
  return { app, caller, trajectory, lineage: await app.lineages.whole(app.store, caller.namespace, trajectory) };
}

/** Requires a valid range of at most `most` steps. Errors: INVALID_REQUEST. */
export function requireListRange({ startStepNumber, endStepNumber }: ListRange, most: number): void {
  requireRange(startStepNumber, endStepNumber);
  if (endStepNumber === undefined || endStepNumber - startStepNumber <= BigInt(most)) return;
  throw invalidField('end_step_number', `must be at most ${most} after start_step_number`);
}

/**
 * Finds the first difference after the shared steps. Reads whole steps only where the hashes of the stored bytes
 * differ.
 */
async function firstDifference(one: Side, other: Side, shared: bigint): Promise<StepDifference | undefined> {
  const common = lesser(one.trajectory.nextStepNumber, other.trajectory.nextStepNumber);
  for (let from = shared; from < common; from += BigInt(STEPS_AT_ONCE)) {
    const to = lesser(from + BigInt(STEPS_AT_ONCE), common);
    const [a, b] = await Promise.all([readOutlines(one, from, to), readOutlines(other, from, to)]);
    for (let i = 0; i < a.length; ) {
      if (a[i]!.hash === b[i]!.hash) {
        i += 1;
        continue;
      }
      const compared = await compareSteps(one, other, from + BigInt(i), to);
      if (compared.difference !== undefined) return compared.difference;
      i += compared.steps;
    }
  }
  if (one.trajectory.nextStepNumber === other.trajectory.nextStepNumber) return undefined;
  return create(StepDifferenceSchema, { stepNumber: common });
}

/**
 * Returns the first difference in a page of steps, and the number of compared steps. There may be none, because hashes
 * also cover fields that the comparison ignores.
 */
async function compareSteps(
  one: Side,
  other: Side,
  from: bigint,
  to: bigint,
): Promise<{ readonly difference: StepDifference | undefined; readonly steps: number }> {
  const [a, b] = await Promise.all(
    [one, other].map(({ app, caller, trajectory }) => readPage(app, caller.namespace, trajectory, [from, to], 'FULL')),
  );
  const steps = Math.min(a!.length, b!.length);
  for (let i = 0; i < steps; i += 1) {
    const found = stepDifference(a![i]!.step, b![i]!.step);
    if (found !== undefined)
      return { difference: create(StepDifferenceSchema, { stepNumber: from + BigInt(i), ...found }), steps };
  }
  return { difference: undefined, steps };
}

async function listRewards(one: Side, other: Side, range: ListRange): Promise<RewardPair[]> {
  const { startStepNumber: start, endStepNumber: end } = range;
  if (end === undefined) return [];
  const [rewards, otherRewards] = await Promise.all([rewardsOf(one, start, end), rewardsOf(other, start, end)]);
  const numbers = Math.max(rewards.length, otherRewards.length);
  return Array.from({ length: numbers }, (_, i) => rewardPair(start + BigInt(i), rewards[i], otherRewards[i]));
}

/** Returns the rewards at a step number that at least one of the trajectories has. */
function rewardPair(stepNumber: bigint, reward: number | undefined, otherReward: number | undefined): RewardPair {
  const difference = reward === undefined || otherReward === undefined ? undefined : otherReward - reward;
  return create(RewardPairSchema, { stepNumber, reward, otherReward, difference });
}

/** Returns the rewards of the steps [start, end) that exist, with undefined for steps without a reward. */
async function rewardsOf(side: Side, start: bigint, end: bigint): Promise<(number | undefined)[]> {
  const last = lesser(end, side.trajectory.nextStepNumber);
  const rewards: (number | undefined)[] = [];
  for (let from = start; from < last; from += BigInt(STEPS_AT_ONCE)) {
    const page = await readOutlines(side, from, lesser(from + BigInt(STEPS_AT_ONCE), last));
    for (const { reward } of page) rewards.push(reward);
  }
  return rewards;
}

/** Returns an outline of each step of [from, to). Errors: TRAJECTORY_DELETED. */
async function readOutlines(side: Side, from: bigint, to: bigint): Promise<StepOutline[]> {
  const { app, caller, trajectory, lineage } = side;
  const found = await app.store.readOutlines(caller.namespace, trajectory.ref.tree, lineage, from, Number(to - from));
  const isComplete =
    found.length === Number(to - from) && found.every((outline, i) => outline.stepNumber === from + BigInt(i));
  if (!isComplete) throw trajectoryDeleted(trajectory.id);
  return found;
}

function lesser(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}

/** Trajectories of a tree that one statement reads. */
const TRAJECTORIES_AT_ONCE = 500;

/** Pairs that are listed, and pairs that are resampled. */
const LISTED = 1000;
const MOST_PAIRS = 10_000;

/** Draws of a bootstrap in one slot of the event loop. */
const SLOT_DRAWS = 100_000;

const DEFAULT_CONFIDENCE = 0.95;

/** Compares branches in pairs (RD11). Errors: TRAJECTORY_NOT_FOUND, INVALID_REQUEST. */
export async function compareBranches(
  request: CompareBranchesRequest,
  { app, caller, signal }: Call,
): Promise<MessageInitShape<typeof CompareBranchesResponseSchema>> {
  const { treeId, label, value, otherValue, seed } = request;
  if (value === otherValue) throw invalidField('other_value', 'must differ from value');
  const { tree } = (await findTrajectory(app, caller, treeId)).ref;
  const found = new BranchPairs(label, [value, otherValue], MEASURES[request.measure]);
  for (let after: bigint | undefined; ; ) {
    const rows = await app.store.listTree(caller.namespace, tree, { limit: TRAJECTORIES_AT_ONCE, after });
    for (const row of rows) found.add(row);
    if (rows.length < TRAJECTORIES_AT_ONCE) break;
    after = rows.at(-1)?.ref.key;
  }
  const pairs = found.pairs();
  if (pairs.length > MOST_PAIRS) {
    throw invalidField('label', `must pair at most ${MOST_PAIRS} branch points, got ${pairs.length}`);
  }
  const differences = Float64Array.from(pairs, ({ difference }) => difference);
  const higher = differences.filter((difference) => difference > 0).length;
  const lower = differences.filter((difference) => difference < 0).length;
  const confidence = request.confidence ?? DEFAULT_CONFIDENCE;
  return {
    pairs: pairs.slice(0, LISTED),
    pairCount: pairs.length,
    higher,
    lower,
    signTestP: signTest(higher, higher + lower),
    ...(pairs.length === 0 ? {} : await meanDifference(app, caller, differences, { confidence, seed, signal })),
  };
}

const MEASURES: Readonly<Record<WireMeasure, BranchMeasure>> = {
  [WireMeasure.UNSPECIFIED]: 'REWARD_SUM',
  [WireMeasure.REWARD_SUM]: 'REWARD_SUM',
  [WireMeasure.REWARD_MEAN]: 'REWARD_MEAN',
  [WireMeasure.STEPS]: 'STEPS',
};

async function meanDifference(
  { store }: App,
  { namespace }: Caller,
  differences: Float64Array,
  { confidence, seed, signal }: { readonly confidence: number; readonly seed: number; readonly signal: AbortSignal },
) {
  const means = new Float64Array(RESAMPLES);
  const inSlot = Math.max(1, Math.floor(SLOT_DRAWS / differences.length));
  let count = 0;
  for (const mean of resampledMeans(differences, seed)) {
    if (count % inSlot === 0) {
      signal.throwIfAborted();
      await store.slots.take(namespace);
    }
    means[count] = mean;
    count += 1;
  }
  const [intervalLow, intervalHigh] = percentileInterval(means, confidence);
  const sum = differences.reduce((total, difference) => total + difference, 0);
  return { meanDifference: sum / differences.length, intervalLow, intervalHigh };
}
