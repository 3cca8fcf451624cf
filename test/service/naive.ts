import type { OnBranches } from '../../src/store/contract/trajectory.ts';

/** One step of the model: the same object in all trajectories that share it. */
export interface NaiveStep {
  readonly word: string;
  readonly reward: number | undefined;
  readonly owner: NaiveTrajectory;
}

export interface NaiveTrajectory {
  readonly id: string;
  readonly parent: NaiveTrajectory | undefined;
  readonly steps: NaiveStep[];
  sealed: boolean;
  /** Kept only for its branches. */
  hidden: boolean;
}

/**
 * The service in its simplest form: a branch is a copy of a list. Steps are identified by the trajectory that appended
 * them.
 */
export class NaiveStore {
  readonly #rows = new Set<NaiveTrajectory>();

  get living(): NaiveTrajectory[] {
    return [...this.#rows].filter(({ hidden }) => !hidden);
  }

  create(id: string): NaiveTrajectory {
    const made = { id, parent: undefined, steps: [], sealed: false, hidden: false };
    this.#rows.add(made);
    return made;
  }

  append(to: NaiveTrajectory, words: readonly [word: string, reward: number | undefined][]): void {
    for (const [word, reward] of words) to.steps.push({ word, reward, owner: to });
  }

  branch(id: string, source: NaiveTrajectory, at: number): NaiveTrajectory {
    const made = {
      id,
      parent: source.steps[at]!.owner,
      steps: source.steps.slice(0, at + 1),
      sealed: false,
      hidden: false,
    };
    this.#rows.add(made);
    return made;
  }

  branchesOf(parent: NaiveTrajectory): NaiveTrajectory[] {
    return [...this.#rows].filter((row) => row.parent === parent);
  }

  /** False: refused. */
  delete(row: NaiveTrajectory, mode: OnBranches): boolean {
    const branches = this.branchesOf(row);
    if (mode === 'REFUSE' && branches.length > 0) return false;
    if (mode === 'KEEP_SHARED' && branches.length > 0) row.hidden = true;
    else {
      this.#purgeBelow(row);
      this.#purge(row);
    }
    return true;
  }

  /** Everything that still has a row in the tree, including hidden trajectories. */
  treeOf(row: NaiveTrajectory): NaiveTrajectory[] {
    const root = rootOf(row);
    return [...this.#rows].filter((other) => rootOf(other) === root);
  }

  #purgeBelow(row: NaiveTrajectory): void {
    for (const branch of this.branchesOf(row)) {
      this.#purgeBelow(branch);
      this.#rows.delete(branch);
    }
  }

  /** A hidden parent is removed with its last branch, and so on up. */
  #purge(row: NaiveTrajectory): void {
    this.#rows.delete(row);
    const { parent } = row;
    if (parent?.hidden === true && this.branchesOf(parent).length === 0) this.#purge(parent);
  }
}

export function sharedSteps(one: NaiveTrajectory, other: NaiveTrajectory): number {
  const length = Math.min(one.steps.length, other.steps.length);
  for (let i = 0; i < length; i += 1) if (one.steps[i] !== other.steps[i]) return i;
  return length;
}

/** The first number at which words or rewards differ, or one list ends. */
export function firstDifference(one: NaiveTrajectory, other: NaiveTrajectory): number | undefined {
  const length = Math.max(one.steps.length, other.steps.length);
  for (let i = 0; i < length; i += 1) {
    const [a, b] = [one.steps[i], other.steps[i]];
    if (a?.word !== b?.word || !Object.is(a?.reward, b?.reward)) return i;
  }
  return undefined;
}

function rootOf(row: NaiveTrajectory): NaiveTrajectory {
  let root = row;
  while (root.parent !== undefined) root = root.parent;
  return root;
}
