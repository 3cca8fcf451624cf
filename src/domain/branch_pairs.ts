import { ownBegin, type Trajectory } from './trajectory.ts';
import { tupleKey } from './tuple_key.ts';

/** The measure by which branches are compared. */
export type BranchMeasure = 'REWARD_SUM' | 'REWARD_MEAN' | 'STEPS';

/** Branches with both values of a label that part from the same parent at the same step. */
export interface BranchPair {
  readonly parentId: string;
  readonly branchPoint: bigint;
  /** Mean of the measures of the branches with the first value, and their number. */
  readonly value: number;
  readonly branches: number;
  readonly otherValue: number;
  readonly otherBranches: number;
  /** `otherValue - value`. */
  readonly difference: number;
}

interface Place {
  readonly parentId: string;
  readonly branchPoint: bigint;
  readonly one: number[];
  readonly other: number[];
}

/** Collects the branches of a tree, in order of creation, and pairs them. */
export class BranchPairs {
  readonly #label: string;
  readonly #values: readonly [string, string];
  readonly #measure: BranchMeasure;
  readonly #places = new Map<string, Place>();

  constructor(label: string, values: readonly [one: string, other: string], measure: BranchMeasure) {
    this.#label = label;
    this.#values = values;
    this.#measure = measure;
  }

  /** Leaves out deleted trajectories, and those without own steps. */
  add(row: Trajectory): void {
    const { parent, hidden, labels } = row;
    const value = labels.get(this.#label);
    if (parent === undefined || hidden || row.nextStepNumber <= ownBegin(row) || value === undefined) return;
    const [one, other] = this.#values;
    if (value !== one && value !== other) return;
    const name = tupleKey(parent.key, parent.branchPoint);
    const place = this.#places.get(name) ?? {
      parentId: parent.id,
      branchPoint: parent.branchPoint,
      one: [],
      other: [],
    };
    this.#places.set(name, place);
    (value === one ? place.one : place.other).push(measureOf(row, this.#measure));
  }

  /** Returns the pairs whose differences are finite, in order of creation of their first branch. */
  pairs(): BranchPair[] {
    return [...this.#places.values()].flatMap(({ parentId, branchPoint, one, other }) => {
      if (one.length === 0 || other.length === 0) return [];
      const [value, otherValue] = [mean(one), mean(other)];
      const difference = otherValue - value;
      if (!Number.isFinite(difference)) return [];
      const counts = { branches: one.length, otherBranches: other.length };
      return [{ parentId, branchPoint, value, otherValue, difference, ...counts }];
    });
  }
}

function measureOf(row: Trajectory, measure: BranchMeasure): number {
  const steps = Number(row.nextStepNumber - ownBegin(row));
  if (measure === 'STEPS') return steps;
  const sum = row.branchRewardSum ?? 0;
  return measure === 'REWARD_SUM' ? sum : sum / steps;
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
