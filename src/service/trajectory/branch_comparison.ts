import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type CompareBranchesRequest,
  type CompareBranchesResponseSchema,
  BranchMeasure as WireMeasure,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type BranchMeasure, BranchPairs } from '../../domain/branch_pairs.ts';
import { invalidField } from '../../domain/errors.ts';
import { percentileInterval, RESAMPLES, resampledMeans, signTest } from '../../domain/paired_statistics.ts';
import type { App } from '../../stream/app.ts';
import { findTrajectory } from '../../stream/find.ts';
import type { Call } from '../method.ts';

/** Trajectories of a tree that one statement reads. */
const PAGE = 500;

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
    const rows = await app.store.listTree(caller.namespace, tree, { limit: PAGE, after });
    for (const row of rows) found.add(row);
    if (rows.length < PAGE) break;
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
    ...(pairs.length === 0 ? {} : await meanDifference(app, differences, { confidence, seed, signal })),
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
  differences: Float64Array,
  { confidence, seed, signal }: { readonly confidence: number; readonly seed: number; readonly signal: AbortSignal },
) {
  const means = new Float64Array(RESAMPLES);
  const inSlot = Math.max(1, Math.floor(SLOT_DRAWS / differences.length));
  let count = 0;
  for (const mean of resampledMeans(differences, seed)) {
    if (count % inSlot === 0) {
      signal.throwIfAborted();
      await store.slots.take();
    }
    means[count] = mean;
    count += 1;
  }
  const [intervalLow, intervalHigh] = percentileInterval(means, confidence);
  const sum = differences.reduce((total, difference) => total + difference, 0);
  return { meanDifference: sum / differences.length, intervalLow, intervalHigh };
}
