import type { NewState } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { OnBranches } from '../../src/store/contract/trajectory.ts';
import { newState } from '../support/steps.ts';
import { stateOf } from './state_chains.ts';

/** Names of states, in the order in which steps have them. */
export const NAMES = ['agent', 'env', 'later'] as const;

/** A state of a step. Branches share the step with the trajectory that owns it. */
export interface NaiveState {
  readonly state: NewState;
  pruned: boolean;
  /** It was not sent with the step. */
  readonly attached: boolean;
}

/** By name. */
export type NaiveStates = Map<string, NaiveState>;

/** A trajectory is a list of words, rewards and states; a branch copies the front of a list. */
export interface Naive {
  readonly row: Trajectory;
  readonly words: string[];
  readonly rewards: (number | undefined)[];
  readonly states: NaiveStates[];
  /** Who owns each step. */
  readonly owners: Naive[];
  readonly parent: Naive | undefined;
  readonly branchPoint: number;
  readonly tags: Set<number>;
  /** What a follower has read so far. */
  readonly followed: string[];
  sealed: boolean;
  hidden: boolean;
}

/** A policy for states, as far as the model knows it. */
export interface StateRules {
  readonly names: readonly string[];
  readonly keepLast: number;
  readonly keepEvery: number;
  readonly keepTagged: boolean;
  readonly keepBranchPoints: boolean;
}

/** A policy for ended trajectories. */
export interface TreeRules {
  readonly keepTagged: boolean;
  readonly onBranches: OnBranches;
}

/** Few states, so that steps share them. Those of `env` are stored as changes of each other, and `agent` is small. */
export function stateFor(name: string, seed: number): NewState {
  return name === 'env'
    ? stateOf(10, 5 * 1024, [seed % 3, seed])
    : newState(`${name === 'agent' ? 'agent' : ''} ${seed}`);
}

export function isFound(states: NaiveStates, name: string): boolean {
  return states.get(name)?.pruned === false;
}

/** All trajectories in order of creation, and what verbs and policies do to them. */
export class NaiveTrees {
  all: Naive[] = [];

  get living(): Naive[] {
    return this.all.filter(({ hidden }) => !hidden);
  }

  add(row: Trajectory): Naive {
    return this.#add(row, undefined, -1);
  }

  branch(row: Trajectory, source: Naive, point: number): void {
    const made = this.#add(row, source.owners[point], point);
    made.words.push(...source.words.slice(0, point + 1));
    made.rewards.push(...source.rewards.slice(0, point + 1));
    made.states.push(...source.states.slice(0, point + 1));
    made.owners.push(...source.owners.slice(0, point + 1));
  }

  /** The end of the stored steps: a hidden trajectory is trimmed to its highest branch point. */
  ownEnd(naive: Naive): number {
    if (!naive.hidden) return naive.words.length;
    return Math.max(...this.#children(naive).map(({ branchPoint }) => branchPoint)) + 1;
  }

  delete(naive: Naive, mode: OnBranches): 'purged' | 'hidden' | 'refused' {
    const hasBranches = this.#children(naive).length > 0;
    if (mode === 'REFUSE' && hasBranches) return 'refused';
    if (mode === 'KEEP_SHARED' && hasBranches) {
      naive.hidden = true;
      naive.tags.clear();
      return 'hidden';
    }
    this.#purge(naive);
    return 'purged';
  }

  /** Removes states by a policy. Returns trajectory, step and names of what was removed. */
  prune({ names, keepLast, keepEvery, keepTagged, keepBranchPoints }: StateRules): string[] {
    const pruned: string[] = [];
    for (const naive of this.all) {
      const tagged = this.#taggedSteps(naive);
      const branchPoints = new Set(this.#children(naive).map(({ branchPoint }) => branchPoint));
      const numbers: number[] = [];
      for (let i = naive.branchPoint + 1; i < this.ownEnd(naive); i += 1) {
        if (names.some((name) => isFound(naive.states[i]!, name))) numbers.push(i);
      }
      for (const number of numbers.slice(0, Math.max(numbers.length - keepLast, 0))) {
        if (keepEvery > 0 && number % keepEvery === 0) continue;
        if ((keepTagged && tagged.has(number)) || (keepBranchPoints && branchPoints.has(number))) continue;
        const going = names.filter((name) => isFound(naive.states[number]!, name));
        for (const name of going) naive.states[number]!.get(name)!.pruned = true;
        pruned.push(`${naive.row.id} ${number} ${[...going].sort().join()}`);
      }
    }
    return pruned;
  }

  /** Deletes ended trajectories by a policy, branches before their parents. */
  retire({ keepTagged, onBranches }: TreeRules): void {
    // A branch that is deleted first pins the steps that it has tagged all the same.
    const tagged = new Set(this.all.filter((each) => this.#taggedSteps(each).size > 0));
    const order = this.living.filter(({ sealed }) => sealed);
    order.sort((a, b) => depthOf(b) - depthOf(a) || (a.row.ref.key < b.row.ref.key ? 1 : -1));
    for (const naive of order) {
      if (!this.all.includes(naive) || naive.hidden) continue;
      const going = onBranches === 'CASCADE' ? this.#withBranches(naive) : [naive];
      if (keepTagged && going.some((each) => tagged.has(each))) continue;
      this.delete(naive, onBranches);
    }
  }

  #add(row: Trajectory, parent: Naive | undefined, branchPoint: number): Naive {
    const made: Naive = {
      row,
      parent,
      branchPoint,
      words: [],
      rewards: [],
      states: [],
      owners: [],
      tags: new Set<number>(),
      followed: [],
      sealed: false,
      hidden: false,
    };
    this.all.push(made);
    return made;
  }

  #children(of: Naive): Naive[] {
    return this.all.filter(({ parent }) => parent === of);
  }

  /** Own steps that it has tagged, or a branch that inherited them. */
  #taggedSteps(naive: Naive): ReadonlySet<number> {
    return new Set(this.all.flatMap(({ tags, owners }) => [...tags].filter((number) => owners[number] === naive)));
  }

  #withBranches(naive: Naive): Naive[] {
    return [naive, ...this.#children(naive).flatMap((child) => this.#withBranches(child))];
  }

  /** Removes a trajectory and all below it, then hidden ancestors without remaining branches. */
  #purge(naive: Naive): void {
    const removed = new Set(this.#withBranches(naive));
    this.all = this.all.filter((each) => !removed.has(each));
    const { parent } = naive;
    if (parent?.hidden === true && this.#children(parent).length === 0) this.#purge(parent);
  }
}

function depthOf({ parent }: Naive): number {
  return parent === undefined ? 0 : depthOf(parent) + 1;
}
