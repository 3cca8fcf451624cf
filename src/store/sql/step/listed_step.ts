import type { StepSort } from '../../contract/step.ts';

/** A step of a list, with the value that it is sorted by and its stored segment. */
export interface ListedStep extends Rank {
  readonly tree: number;
  readonly key: number;
  readonly stepNumber: number;
  readonly ownerId: string;
  /** First step of the stored segment, and the size of its body in bytes. */
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
  readonly descending: boolean;
}

/** Returns the comparison of the order: by value, then by trajectory, then by number, all in the same direction. */
export function compareRanks({ descending }: SearchOrder): (a: Rank, b: Rank) => number {
  const direction = descending ? -1 : 1;
  const compare = (a: Rank['value'], b: Rank['value']) => (a < b ? -direction : a > b ? direction : 0);
  return (a, b) => compare(a.value, b.value) || compare(a.key, b.key) || compare(a.stepNumber, b.stepNumber);
}

/** Collects the first steps in order, at most `limit`. */
export class FirstSteps {
  readonly #compare: (a: Rank, b: Rank) => number;
  readonly #limit: number;
  #steps: ListedStep[] = [];

  constructor(order: SearchOrder, limit: number) {
    this.#compare = compareRanks(order);
    this.#limit = limit;
  }

  get steps(): readonly ListedStep[] {
    return this.#steps;
  }

  add(steps: readonly ListedStep[]): void {
    if (steps.length === 0) return;
    this.#steps = [...this.#steps, ...steps].sort(this.#compare).slice(0, this.#limit);
  }

  /** Whether no step at this position or after it can be among the first. */
  excludes(rank: Rank): boolean {
    const last = this.#steps[this.#limit - 1];
    return last !== undefined && this.#compare(last, rank) <= 0;
  }
}
