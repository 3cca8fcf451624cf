import type { StepSort } from '../../../contract/step.ts';

/** A step of a list, with the value that it is sorted by and its segment. */
export interface ListedStep extends Rank {
  readonly tree: number;
  readonly key: number;
  readonly stepNumber: number;
  readonly ownerId: string;
  /** First step of the segment, and the size of its body in bytes. */
  readonly first: number;
  readonly bodyBytes: number;
}

/** A position in the order of a list. */
export interface Rank {
  readonly value: number | bigint | string;
  /** Row key of the trajectory. */
  readonly key: number | bigint;
  readonly stepNumber: number | bigint;
}

/**
 * The order of a search. `UNRANKED` has the steps without a reward, and those with NaN, by trajectory and number: they
 * come after all others in a list by reward (W11).
 */
export interface SearchOrder {
  readonly by: StepSort['by'] | 'UNRANKED';
  readonly metric?: string | undefined;
  readonly descending: boolean;
}

/** Returns the comparison of the order: by value, then by trajectory, then by number, all in the same direction. */
export function compareRanks({ descending }: SearchOrder): (a: Rank, b: Rank) => number {
  const direction = descending ? -1 : 1;
  const compare = (a: Rank['value'], b: Rank['value']) => (a < b ? -direction : a > b ? direction : 0);
  return (a, b) => compare(a.value, b.value) || compare(a.key, b.key) || compare(a.stepNumber, b.stepNumber);
}

/** The first steps in order, at most `limit`, of what was searched so far. */
export class FirstSteps {
  readonly steps: readonly ListedStep[];
  readonly #order: SearchOrder;
  readonly #limit: number;

  constructor(order: SearchOrder, limit: number, steps: readonly ListedStep[] = []) {
    this.#order = order;
    this.#limit = limit;
    this.steps = steps;
  }

  /** Returns the first of these and other steps. */
  with(steps: readonly ListedStep[]): FirstSteps {
    const all = [...this.steps, ...steps].sort(compareRanks(this.#order));
    return new FirstSteps(this.#order, this.#limit, all.slice(0, this.#limit));
  }

  /** The last of the first steps; undefined while there are fewer than `limit`. */
  get last(): ListedStep | undefined {
    return this.steps[this.#limit - 1];
  }

  /** Whether no step at this position or after it can be among the first. */
  excludes(rank: Rank): boolean {
    const { last } = this;
    return last !== undefined && compareRanks(this.#order)(last, rank) <= 0;
  }
}
