import type { Instant } from './instant.ts';
import type { SealStatus, TrajectoryStatus } from './lifecycle.ts';
import type { StepPruning } from './pruning.ts';

/** S14: removes states of steps, and keeps the steps. A step that no rule keeps loses the selected states. */
export interface StatePolicy {
  /** States to remove, by name. */
  readonly names: readonly string[];
  /** Contents to remove, by media type. */
  readonly mediaTypes: readonly string[];
  /** Of each trajectory, the last steps that have something to remove keep it. */
  readonly keepLast: number;
  /** Steps whose number is a multiple of this one keep everything. 0: none. */
  readonly keepEvery: bigint;
  /** Steps that are not older than this, in nanoseconds, keep everything. */
  readonly olderThan: bigint;
  readonly keepTagged: boolean;
  readonly keepBranchPoints: boolean;
  /** Steps that are terminated or truncated. */
  readonly keepTerminal: boolean;
}

/** S14: deletes whole trajectories, as DeleteTrajectory does. */
export interface TrajectoryPolicy {
  readonly statuses: readonly TrajectoryStatus[];
  /** Required labels. */
  readonly labels: ReadonlyMap<string, string>;
  /** Of the trajectories that match, the newest ones stay. */
  readonly keepLast: number;
  /** Since the last update, in nanoseconds. */
  readonly olderThan: bigint;
  readonly keepTagged: boolean;
  readonly onBranches: 'REFUSE' | 'CASCADE' | 'KEEP_SHARED';
}

/** Ended trajectories. Others may have a writer. */
export const ENDED: readonly SealStatus[] = ['COMPLETED', 'FAILED', 'CANCELLED'];

/** Trajectories of a run or an experiment, by id, or of the namespace. */
export interface RetentionScope {
  readonly runId?: string | undefined;
  readonly experimentId?: string | undefined;
}

export type RetentionPolicy = RetentionScope &
  ({ readonly states: StatePolicy } | { readonly trajectories: TrajectoryPolicy });

/** Why something stays that a policy would remove. */
export type Pin = 'TAG' | 'BRANCH' | 'LIVE_ROLLOUT';

/** What a policy compares of a step. */
export interface StepFacts {
  readonly stepNumber: bigint;
  readonly commitTime: Instant;
  readonly isTerminal: boolean;
  /** Of what can still be read: names of states, and media types of contents with states. */
  readonly names: readonly string[];
  readonly mediaTypes: readonly string[];
}

/** What refers to the steps of a trajectory. */
export interface StepPins {
  readonly tagged: ReadonlySet<bigint>;
  readonly branchPoints: ReadonlySet<bigint>;
  /** A live rollout uses the whole trajectory. */
  readonly isLive: boolean;
}

/** A step that loses states, or would lose them if it was not pinned. */
export interface SelectedStep<Facts extends StepFacts = StepFacts> {
  readonly facts: Facts;
  readonly pruning: StepPruning;
  readonly pins: readonly Pin[];
}

/**
 * Decides which own steps of a trajectory lose states. Steps are added in order. Steps that were committed after `asOf`
 * do not exist for it: so what is appended after a plan adds nothing to it, and keeps nothing less.
 */
export class StateSelection<Facts extends StepFacts = StepFacts> {
  readonly #policy: StatePolicy;
  readonly #asOf: Instant;
  readonly #pins: StepPins;
  /** The last steps that have something to remove. */
  readonly #last: { readonly facts: Facts; readonly pruning: StepPruning }[] = [];

  constructor(policy: StatePolicy, asOf: Instant, pins: StepPins) {
    this.#policy = policy;
    this.#asOf = asOf;
    this.#pins = pins;
  }

  /** Returns the step that is decided now: not one of the last any more, and selected. */
  add(facts: Facts): SelectedStep<Facts> | undefined {
    const pruning = this.#pruningOf(facts);
    if (pruning === undefined) return undefined;
    this.#last.push({ facts, pruning });
    if (this.#last.length <= this.#policy.keepLast) return undefined;
    const decided = this.#last.shift()!;
    return this.#isKept(decided.facts) ? undefined : { ...decided, pins: this.#pinsOf(decided.facts) };
  }

  /** Returns undefined if the step has nothing to remove. */
  #pruningOf({ stepNumber, commitTime, names, mediaTypes }: StepFacts): StepPruning | undefined {
    if (commitTime > this.#asOf) return undefined;
    const wanted = (list: readonly string[], of: readonly string[]) => of.filter((each) => list.includes(each));
    const pruning = {
      stepNumber,
      names: [...new Set(wanted(this.#policy.names, names))],
      mediaTypes: [...new Set(wanted(this.#policy.mediaTypes, mediaTypes))],
    };
    return pruning.names.length + pruning.mediaTypes.length === 0 ? undefined : pruning;
  }

  #isKept({ stepNumber, commitTime, isTerminal }: StepFacts): boolean {
    const { keepEvery, keepTerminal, olderThan } = this.#policy;
    return (
      commitTime > this.#asOf - olderThan ||
      (keepEvery > 0n && stepNumber % keepEvery === 0n) ||
      (keepTerminal && isTerminal)
    );
  }

  #pinsOf({ stepNumber }: StepFacts): readonly Pin[] {
    const { tagged, branchPoints, isLive } = this.#pins;
    const pins: Pin[] = [];
    if (this.#policy.keepTagged && tagged.has(stepNumber)) pins.push('TAG');
    if (this.#policy.keepBranchPoints && branchPoints.has(stepNumber)) pins.push('BRANCH');
    if (isLive) pins.push('LIVE_ROLLOUT');
    return pins;
  }
}

/** A trajectory of a tree, as far as its deletion depends on it. */
export interface TreeMember {
  readonly key: bigint;
  readonly parent: bigint | undefined;
  /** The branch point; undefined for a root. */
  readonly branchPoint: bigint | undefined;
  readonly hidden: boolean;
  /** The policy selects it. */
  readonly isSelected: boolean;
  /** It has a tag of an own step. */
  readonly isTagged: boolean;
  readonly isLive: boolean;
}

/** What a trajectory policy does to a trajectory of a tree. */
export interface MemberDecision {
  readonly key: bigint;
  /** Undefined: it stays, because of the pins. */
  readonly keptSteps: 'none' | { readonly upTo: bigint } | undefined;
  readonly pins: readonly Pin[];
  /** The policy selects it: DeleteTrajectory is called. Others go with it: branches (CASCADE), or hidden ancestors. */
  readonly isSelected: boolean;
}

/**
 * Decides which trajectories of a tree are deleted, in this order: branches before their parents. Returns those that
 * the policy selects, and those that go or shrink with them.
 */
export function decideTree(members: readonly TreeMember[], policy: TrajectoryPolicy): readonly MemberDecision[] {
  return new TreeDecision(members, policy).decide();
}

class TreeDecision {
  readonly #policy: TrajectoryPolicy;
  readonly #left: Map<bigint, TreeMember>;
  readonly #children = new Map<bigint, Set<bigint>>();
  readonly #hidden: Set<bigint>;
  readonly #decided = new Map<bigint, MemberDecision>();

  constructor(members: readonly TreeMember[], policy: TrajectoryPolicy) {
    this.#policy = policy;
    this.#left = new Map(members.map((each) => [each.key, each]));
    this.#hidden = new Set(members.filter(({ hidden }) => hidden).map(({ key }) => key));
    for (const { key, parent } of members) {
      if (parent !== undefined) this.#children.set(parent, (this.#children.get(parent) ?? new Set()).add(key));
    }
  }

  decide(): readonly MemberDecision[] {
    for (const member of [...this.#left.values()].sort(branchesFirst(this.#left))) {
      if (!member.isSelected || member.hidden || !this.#left.has(member.key)) continue;
      const pins = this.#pinsOf(member);
      if (pins.length > 0) this.#set({ key: member.key, keptSteps: undefined, pins, isSelected: true });
      else this.#delete(member);
    }
    return [...this.#decided.values()];
  }

  #pinsOf(member: TreeMember): readonly Pin[] {
    const { onBranches, keepTagged } = this.#policy;
    const going = onBranches === 'CASCADE' ? [...this.#below(member.key)] : [member];
    const pins: Pin[] = [];
    if (keepTagged && going.some(({ isTagged }) => isTagged)) pins.push('TAG');
    if (onBranches === 'REFUSE' && this.#childrenOf(member.key).length > 0) pins.push('BRANCH');
    if (going.some(({ isLive }) => isLive)) pins.push('LIVE_ROLLOUT');
    return pins;
  }

  #delete(member: TreeMember): void {
    if (this.#policy.onBranches === 'CASCADE') {
      for (const each of [...this.#below(member.key)].reverse()) this.#remove(each, each === member);
    } else if (this.#childrenOf(member.key).length > 0) {
      this.#hidden.add(member.key);
      this.#trim(member, true);
    } else this.#remove(member, true);
  }

  /** Removes a trajectory without branches, then hidden ancestors that no branch needs. */
  #remove(member: TreeMember, isSelected: boolean): void {
    this.#left.delete(member.key);
    this.#set({ key: member.key, keptSteps: 'none', pins: [], isSelected });
    const parent = member.parent === undefined ? undefined : this.#left.get(member.parent);
    this.#children.get(member.parent ?? -1n)?.delete(member.key);
    if (parent === undefined || !this.#hidden.has(parent.key)) return;
    const wasSelected = this.#decided.get(parent.key)?.isSelected === true;
    if (this.#childrenOf(parent.key).length === 0) this.#remove(parent, wasSelected);
    else this.#trim(parent, wasSelected);
  }

  #trim({ key }: TreeMember, isSelected: boolean): void {
    const points = this.#childrenOf(key).map(({ branchPoint }) => branchPoint ?? 0n);
    const upTo = points.reduce((a, b) => (a > b ? a : b)) + 1n;
    this.#set({ key, keptSteps: { upTo }, pins: [], isSelected });
  }

  /** A later decision replaces an earlier one, at its place in the order. */
  #set(decision: MemberDecision): void {
    this.#decided.set(decision.key, decision);
  }

  #childrenOf(key: bigint): TreeMember[] {
    return [...(this.#children.get(key) ?? [])].flatMap((child) => this.#left.get(child) ?? []);
  }

  /** A trajectory and all that branch off, parents before their branches. */
  *#below(key: bigint): Generator<TreeMember> {
    for (const queue = [key]; queue.length > 0; ) {
      const next = queue.shift()!;
      const member = this.#left.get(next);
      if (member === undefined) continue;
      yield member;
      queue.push(...this.#childrenOf(next).map((child) => child.key));
    }
  }
}

/** A branch that a claim created may have a lower key than its parent, so depth decides. */
function branchesFirst(members: ReadonlyMap<bigint, TreeMember>) {
  const depths = new Map<bigint, number>();
  const depthOf = (of: TreeMember): number => {
    const path: bigint[] = [];
    let at: TreeMember | undefined = of;
    while (at !== undefined && !depths.has(at.key)) {
      path.push(at.key);
      at = at.parent === undefined ? undefined : members.get(at.parent);
    }
    let depth = at === undefined ? -1 : depths.get(at.key)!;
    for (const key of path.reverse()) depths.set(key, ++depth);
    return depths.get(of.key)!;
  };
  for (const member of members.values()) depthOf(member);
  return (a: TreeMember, b: TreeMember) => depths.get(b.key)! - depths.get(a.key)! || (a.key < b.key ? 1 : -1);
}

/** How much goes: exact numbers, and about how many bytes the database frees. */
export interface RemovedSize {
  trajectories: bigint;
  steps: bigint;
  /** States of steps and of contents that are removed from their steps, and those of deleted steps. */
  states: bigint;
  /** Steps and states as they were sent. A state counts for each step that has it. */
  logicalBytes: bigint;
  /**
   * Estimated, because compressed steps and states share bytes. Negative if states that depend on what goes take more.
   */
  storedBytes: bigint;
}

export function addSizes(a: RemovedSize, b: RemovedSize): RemovedSize {
  return {
    trajectories: a.trajectories + b.trajectories,
    steps: a.steps + b.steps,
    states: a.states + b.states,
    logicalBytes: a.logicalBytes + b.logicalBytes,
    storedBytes: a.storedBytes + b.storedBytes,
  };
}

export const NOTHING: Readonly<RemovedSize> = Object.freeze({
  trajectories: 0n,
  steps: 0n,
  states: 0n,
  logicalBytes: 0n,
  storedBytes: 0n,
});

/** Some of what a policy does to one trajectory. */
export interface RetentionPart {
  readonly trajectoryId: string;
  /** The trajectory is deleted: from its first step on, or from this step, because branches need those before. */
  readonly deletedFrom?: bigint;
  readonly pruned: readonly StepPruning[];
  /** What stays though it is selected. Without a step number: the whole trajectory. */
  readonly pinned: readonly { readonly stepNumber?: bigint; readonly pins: readonly Pin[] }[];
  readonly size: RemovedSize;
}

/** A plan, or its execution, which continues while its parts are read. */
export interface Retention {
  readonly asOf: Instant;
  readonly parts: AsyncGenerator<RetentionPart, void, undefined>;
}
